"""The jobs of a cluster, the command line of its world and their Dask settings, from its record."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workbench import config
from workbench.deploy.folder import ClusterFolder
from workbench.deploy.record import Record
from workbench.host import debug_log, stub
from workbench.host.files import opener
from workbench.host.network import has_fabric
from workbench.launch.allocation import Allocation, current_allocation
from workbench.launch.interface import JobSpec
from workbench.launch.launchers import launcher
from workbench.launch.mpi_library import MPI, Geometry, WorldCommand, has_ulfm, world_command
from workbench.launch.multinode import NodePlacement, even_counts, packed_counts, remote_shell, spread_command, usable


def dask_settings(folder: ClusterFolder) -> Path:
    """Return the file with the Dask settings of a cluster."""
    return folder.path / "dask.yaml"


def write_dask_settings(record: Record, folder: ClusterFolder) -> None:
    """Write those Dask settings of this process that a new process would not have to the cluster's folder."""
    import dask
    import yaml

    # Every rank reads this file. With all settings it would be the largest file that a rank reads.
    defaults: dict[str, Any] = {}
    dask.config.refresh(defaults, paths=[], env={})
    with_files: dict[str, Any] = {}
    dask.config.refresh(with_files, env={})
    changes = [_changes(dask.config.config, base) for base in (defaults, with_files)]
    if record.local_directory and dask.config.get("temporary-directory", None) is None:
        changes.append({"temporary-directory": record.local_directory})
    with open(dask_settings(folder), "w", encoding="utf-8", opener=opener) as file:
        yaml.safe_dump(dask.config.merge(*changes), file)


def _changes(settings: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            below = defaults.get(key)
            if inner := _changes(value, below if isinstance(below, Mapping) else {}):
                changes[key] = inner
        elif (key not in defaults or value != defaults[key]) and _is_plain(value):
            changes[key] = value
    return changes


def _is_plain(value: Any) -> bool:
    import yaml

    try:
        yaml.safe_dump(value)
    except yaml.YAMLError:
        return False
    return True


RANK_PROGRAM = "workbench.rank"
"""The program of a rank, for ``python -m``."""
# The MPI library is first. It takes the longest to load. `comm_world` precedes modules of the user, which may keep
# `MPI.COMM_WORLD`.
_RANK_MODULES = (
    "mpi4py.MPI", "workbench.rank.__main__", "workbench.rank.worker", "workbench.mpi.communicator_cache",
    "workbench.mpi.comm_world",
)  # fmt: skip


def job_spec(record: Record, folder: ClusterFolder, after: str = "") -> JobSpec:
    """Return the job with the head and the world of a cluster, which begins when the job `after` has ended."""
    command = ("-m", "workbench.head", record.name, public_id(record), *([str(record.turn)] if record.turn else []))
    spec = _spec(record, folder, record.ranks, command, stem=job_stem(record), log="head")
    return dataclasses.replace(spec, after=after, requeue=record.resubmit > 0)


def job_stem(record: Record) -> str:
    """Return the name of the files of the job of a record."""
    return f"job-{record.turn}" if record.turn else "job"


def world_job_spec(record: Record, folder: ClusterFolder, index: int, ranks: int, start: int = 1) -> JobSpec:
    """Return the job of a world for which the first job has no room, for one start of that world."""
    command = ("-m", "workbench.head.keeper", record.name, public_id(record), str(index), str(ranks))
    # A node has as many ranks as in the first job, and the number of nodes follows from that.
    per_node = record.resources.ranks_per_node
    request = dataclasses.replace(
        record.resources, nodes=None, ranks_per_node=min(per_node, ranks) if per_node else None
    )
    resources = launcher(record.scheduler).resolve(request, ranks=ranks, threads=record.threads, memory=record.memory)
    spec = _spec(record, folder, ranks, command, stem=f"world-{index}-{start}", log=f"job-{index}")
    return dataclasses.replace(spec, resources=resources)


def identity(record: Record, stem: str) -> str:
    """Return the text that identifies a job of a cluster in the scheduler."""
    return f"{public_id(record)}:{stem}"


def public_id(record: Record) -> str:
    """Return the part of the id that all users may read in the scheduler and on command lines.

    From the whole id follow the names of folders, which other users must not guess.
    """
    return record.id[:16]


def _spec(
    record: Record, folder: ClusterFolder, ranks: int, command: tuple[str, ...], *, stem: str, log: str
) -> JobSpec:
    return JobSpec(
        name=record.name,
        ranks=ranks,
        threads=record.threads,
        memory=record.memory,
        command=(sys.executable, "-P", *command),
        log=folder.logs / f"{log}.log",
        script=folder.path / f"{stem}.sh",
        environment=(
            # A batch job may not inherit the variables of this process, but must use the same registry.
            ("JUPYTER_DATA_DIR", str(folder.data)),
            ("DASK_CONFIG", str(dask_settings(folder))),
            *debug_log.variables(),
        ),
        resources=record.resources,
        directory=Path(record.directory),
        identity=identity(record, stem),
    )


def world_line(
    record: Record,
    folder: ClusterFolder,
    mpi: MPI,
    *,
    index: int,
    ranks: int,
    timeout: float,
    shared_memory: Path,
    log: Path,
    allocation: Allocation | None = None,
) -> WorldCommand:
    """Return the command line that starts a world of the cluster of `record`.

    Parameters
    ----------
    mpi
        The MPI in use.
    index, ranks
        Index and size of the world.
    timeout
        Seconds until the ranks must be ready.
    shared_memory
        Folder for MPI's shared memory.
    log
        The world's log, for the output of templates of other nodes.
    allocation
        The allocation with the nodes of the world; None: only this host.
    """
    rank = [sys.executable, "-P", *_rank_program(record, log), record.name, public_id(record)]
    rank += ["--world", str(index), "--ranks", str(ranks), "--timeout", f"{timeout:.1f}"]
    if allocation is None or not allocation.leaves_this_host:
        geometry = Geometry.here(ranks, record.threads, shared_memory)
        command = world_command(mpi, geometry, rank, config.arguments("mpi.extra-args"))
        return dataclasses.replace(command, guard="" if config.switch("mpi.guard") else None)
    hosts = str(folder.path / f"hosts-{index}") if config.switch("mpi.guard") else None
    placement = _spread(record, ranks, allocation, shared_memory=shared_memory, guard=hosts)
    return spread_command(mpi, placement, rank)


def _rank_program(record: Record, log: Path) -> list[str]:
    if not record.template:
        return ["-m", RANK_PROGRAM]
    return ["-I", "-S", stub.__file__, str(log), template_modules(record), RANK_PROGRAM]


def template_modules(record: Record) -> str:
    """Return the modules that the template of a node imports before it forks ranks, separated by commas."""
    return ",".join([*_RANK_MODULES, *record.preload])


def _spread(
    record: Record, ranks: int, allocation: Allocation, *, shared_memory: Path, guard: str | None
) -> NodePlacement:
    counts, around = even_counts(ranks, len(allocation.nodes)), allocation
    # The slots of a job count its ranks, and each rank has its cores and memory there. An existing allocation may have
    # more slots, of which each node is filled in turn, and its slots may be single cores.
    used = usable(allocation)
    if record.scheduler == "here":
        by_cores = usable(
            dataclasses.replace(allocation, slots=tuple(slots // record.threads for slots in allocation.slots))
        )
        used = by_cores if ranks <= sum(by_cores.slots) else used
    if ranks == sum(used.slots) or (record.scheduler == "here" and ranks < sum(used.slots)):
        counts, around = packed_counts(ranks, used.slots), used
    return NodePlacement(
        ranks=ranks,
        threads=record.threads,
        around=around,
        counts=counts,
        first=around.nodes[0] == allocation.nodes[0],
        root=os.geteuid() == 0,
        interface=record.interface or config.get("interface"),
        session=str(shared_memory),
        agent=remote_shell(allocation.scheduler),
        guard=guard,
        directory=record.directory,
        fabric=has_fabric(),
        gpus=record.resources.gpus_per_rank or 0,
    )


def survives_a_lost_rank(record: Record, mpi: MPI, ranks: int, *, own_job: bool) -> bool:
    """Return, in the head, whether the other ranks of a world of this size continue when one dies."""
    if not has_ulfm(mpi):
        return False
    if own_job:
        return ranks <= (record.resources.ranks_per_node or 1)
    allocation = allocation_of(record)
    return allocation is None or not allocation.leaves_this_host


def allocation_of(record: Record) -> Allocation | None:
    """Return, in the head, the allocation with the nodes of the world; None: only this host."""
    return None if record.scheduler == "local" else current_allocation()
