"""From a cluster's record to its jobs, and to the command lines of its worlds."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path

from workbench import config
from workbench.deploy.dask_settings import dask_settings
from workbench.deploy.record import Record
from workbench.fork import stub
from workbench.launch.allocation import Allocation, current_allocation
from workbench.launch.interface import JobSpec
from workbench.launch.launchers import launcher
from workbench.launch.mpi_library import MPI
from workbench.launch.mpiexec import Geometry, WorldCommand, has_ulfm, world_command
from workbench.launch.multinode import NodePlacement, even_counts, packed_counts
from workbench.launch.network import has_fabric
from workbench.launch.process_manager import remote_shell, spread_command
from workbench.log import debug_log

RANK_PROGRAM = "workbench.rank"
"""What ``python -m`` runs as a rank."""
# The library of MPI first: the rest of what a rank loads is loaded by then, or takes less time.
_RANK_MODULES = ("mpi4py.MPI", "workbench.rank.__main__", "workbench.rank.worker", "workbench.mpi.communicator_cache")


def job_spec(record: Record) -> JobSpec:
    """Return the job that holds head and world 0 of a cluster."""
    return _spec(record, "job", "head", record.ranks, ("-m", "workbench.head", record.name, record.id))


def world_job_spec(record: Record, index: int, ranks: int, start: int = 1) -> JobSpec:
    """Return the job that holds one more world of a cluster, `index`, of so many ranks, for a certain start of it."""
    command = ("-m", "workbench.head.keeper", record.name, record.id, str(index), str(ranks))
    # As many ranks on a node as in world 0, on as many nodes as these take.
    most = record.resources.ranks_per_node
    asked = dataclasses.replace(record.resources, nodes=None, ranks_per_node=min(most, ranks) if most else None)
    settled = launcher(record.scheduler).resolve(asked, ranks=ranks, threads=record.threads, memory=record.memory)
    spec = _spec(record, f"world-{index}-{start}", f"job-{index}", ranks, command)
    return dataclasses.replace(spec, resources=settled)


def identity(record: Record, stem: str) -> str:
    """Return the words by which a scheduler knows a job of the cluster: whose, and which of its jobs."""
    # It shows them to everybody, and the rest of the id names folders that nobody may make before the cluster does.
    return f"{record.id[:16]}:{stem}"


def _spec(record: Record, stem: str, log: str, ranks: int, command: tuple[str, ...]) -> JobSpec:
    return JobSpec(
        name=record.name,
        ranks=ranks,
        threads=record.threads,
        memory=record.memory,
        command=(sys.executable, *command),
        log=record.logs / f"{log}.log",
        script=record.folder / f"{stem}.sh",
        environment=(
            # A batch job need not have the variables of this process: the registry must be the same one.
            ("JUPYTER_DATA_DIR", str(config.data_folder())),
            ("DASK_CONFIG", str(dask_settings(record))),
            *debug_log.variables(),
        ),
        resources=record.resources,
        directory=Path(record.directory),
        identity=identity(record, stem),
    )


def world_line(
    record: Record,
    found: MPI,
    *,
    index: int,
    ranks: int,
    timeout: float,
    shared_memory: Path,
    log: Path,
    around: Allocation | None = None,
) -> WorldCommand:
    """Return the command line that starts one world of the cluster of `record`.

    Parameters
    ----------
    found
        The MPI in use.
    index, ranks
        Number and size of the world.
    timeout
        Seconds that its ranks give themselves to be ready.
    shared_memory
        Folder for MPI's shared memory.
    log
        The world's log, for what templates of other nodes print.
    around
        The allocation whose nodes the world has; None: this host alone.
    """
    rank = [sys.executable, *_rank_program(record, log), record.name, record.id]
    rank += ["--world", str(index), "--ranks", str(ranks), "--timeout", f"{timeout:.1f}"]
    if around is None or not around.leaves_this_host:
        geometry = Geometry.here(ranks, record.threads, shared_memory)
        command = world_command(found, geometry, rank, config.get("mpi.extra-args"))
        return dataclasses.replace(command, guard="" if config.get("mpi.guard") else None)
    hosts = str(record.folder / f"hosts-{index}") if config.get("mpi.guard") else None
    return spread_command(found, _spread(record, ranks, shared_memory, around, hosts), rank)


def _rank_program(record: Record, log: Path) -> list[str]:
    if not record.template:
        return ["-m", RANK_PROGRAM]
    return ["-I", "-S", stub.__file__, record.id, str(log), template_modules(record), RANK_PROGRAM]


def template_modules(record: Record) -> str:
    """Return the modules that the template of a node imports before it forks ranks, separated by commas."""
    return ",".join([*_RANK_MODULES, *record.preload])


def _spread(record: Record, ranks: int, shared_memory: Path, around: Allocation, guard: str | None) -> NodePlacement:
    counts = even_counts(ranks, len(around.nodes))
    if record.scheduler == "here" and min(around.slots) and ranks <= sum(around.slots):
        # In an allocation that was made for something else: node by node, as far as each has slots.
        counts = packed_counts(ranks, around.slots)
    return NodePlacement(
        ranks=ranks,
        threads=record.threads,
        around=around,
        counts=counts,
        root=os.geteuid() == 0,
        fault_tolerant=record.fault_tolerant,
        interface=record.interface or config.get("interface"),
        session=str(shared_memory),
        agent=remote_shell(around.scheduler),
        guard=guard,
        directory=record.directory,
        fabric=has_fabric(),
    )


def goes_on_without_a_rank(record: Record, found: MPI, ranks: int, *, own_job: bool) -> bool:
    """Tell, in the head of a cluster, whether the others of so many ranks of a world go on when one dies."""
    if not has_ulfm(found) or record.fault_tolerant:
        return has_ulfm(found)
    if own_job:
        return ranks <= (record.resources.ranks_per_node or 1)
    around = allocation_of(record)
    return around is None or not around.leaves_this_host


def allocation_of(record: Record) -> Allocation | None:
    """Return the allocation whose nodes the worlds of a cluster have, asked in its head; None: this host alone."""
    return None if record.scheduler == "local" else current_allocation()
