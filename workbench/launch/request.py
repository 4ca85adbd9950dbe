"""From what a user asks for to a record and a job, validated once."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workbench import config, registry
from workbench.errors import InvalidRequest, did_you_mean
from workbench.launch.choose import launcher
from workbench.launch.interface import JobSpec
from workbench.launch.mpi import MPI, check_choice
from workbench.launch.mpiexec import Command, Geometry, available_cores, world_command
from workbench.record import Record, data_folder

PROTOCOLS = ("mpi", "tcp")
# A slip of the keyboard: no MPI world is larger.
MAX_RANKS = 100_000
# Bytes: Python, Dask and MPI of a rank without data.
RANK_MEMORY = 50_000_000


def request(
    ranks: Any = None,
    *,
    name: str | None = None,
    scheduler: str = "auto",
    threads: Any = 1,
    memory: Any = None,
    mpi: str = "auto",
    protocol: str = "mpi",
    timeout: Any = None,
    idle_timeout: Any = None,
) -> Record:
    """Return the record of the cluster that is asked for.

    Parameters
    ----------
    ranks
        Size of the MPI world; None: one rank for each core of this host.
    name
        Name of the cluster; None: the first free of ``mpi``, ``mpi-2``, ...
    scheduler
        ``auto`` or ``local``.
    threads
        Threads of each rank, for Dask tasks and for OpenMP and BLAS.
    memory
        Memory of each rank, in bytes or as ``"4 GiB"``; None: an even share of its node.
    mpi
        ``auto``, ``openmpi``, ``mpich`` or ``intelmpi``.
    protocol
        Protocol between the ranks: ``mpi`` (large frames by MPI, all else TLS) or ``tcp`` (all of it TLS).
    timeout
        Seconds, or a time span such as ``"2 minutes"``, until all ranks have to be ready.
    idle_timeout
        The same for the time without clients and tasks after which the cluster ends itself.

    Raises
    ------
    InvalidRequest
        If something of it is not allowed.
    """
    if protocol not in PROTOCOLS:
        raise InvalidRequest(f"protocol {protocol!r}: {did_you_mean(str(protocol), PROTOCOLS)}")
    # Head and ranks would stumble over them later.
    config.address()
    config.size("comm.threshold")
    config.fraction("comm.pool")
    ready_within = _seconds("timeout", timeout, "start-timeout")
    now = time.time()
    return Record(
        name=registry.free_name() if name is None else registry.check_name(name),
        ranks=available_cores() if ranks is None else rank_count(ranks),
        threads=_count("threads", threads),
        memory=None if memory is None else _bytes(memory),
        protocol=protocol,
        mpi=check_choice(mpi),
        scheduler=launcher(scheduler).name,
        idle_timeout=_seconds("idle_timeout", idle_timeout, "idle-timeout"),
        created=now,
        deadline=now + ready_within,
        message="submitted",
    )


def job_spec(record: Record) -> JobSpec:
    """Return the job that holds the cluster of `record`."""
    return JobSpec(
        name=record.name,
        ranks=record.ranks,
        threads=record.threads,
        memory=record.memory,
        command=(sys.executable, "-m", "workbench.head", record.name),
        log=record.logs / "head.log",
        script=record.folder / "job.sh",
        environment=(
            # A batch job need not have the variables of this process: the registry must be the same one.
            ("JUPYTER_DATA_DIR", str(data_folder())),
            ("DASK_CONFIG", str(dask_settings(record))),
        ),
    )


def world_line(record: Record, found: MPI, *, index: int, ranks: int, timeout: float, shared_memory: Path) -> Command:
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
    """
    rank = [sys.executable, "-m", "workbench.rank", record.name]
    rank += ["--world", str(index), "--ranks", str(ranks), "--timeout", f"{timeout:.1f}"]
    geometry = Geometry.here(ranks, record.threads, shared_memory)
    return world_command(found, geometry, rank, config.get("mpi.extra-args"))


def dask_settings(record: Record) -> Path:
    """Return the file with this process's Dask settings, which hold for head and ranks as well."""
    return record.folder / "dask.yaml"


def write_dask_settings(record: Record) -> None:
    """Write this process's Dask settings where the cluster finds them: those that a new process would not have."""
    import dask
    import yaml

    # Every rank reads this file, and reading all settings again would take it longer than anything else it reads.
    defaults: dict[str, Any] = {}
    dask.config.refresh(defaults, paths=[], env={})
    with_files: dict[str, Any] = {}
    dask.config.refresh(with_files, env={})
    changes = [_changes(dask.config.config, usual) for usual in (defaults, with_files)]
    dask_settings(record).write_text(yaml.safe_dump(dask.config.merge(*changes)), encoding="utf-8")


def _changes(settings: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            below = usual.get(key)
            if inner := _changes(value, below if isinstance(below, Mapping) else {}):
                changes[key] = inner
        elif (key not in usual or value != usual[key]) and _is_plain(value):
            changes[key] = value
    return changes


def _is_plain(value: Any) -> bool:
    import yaml

    try:
        yaml.safe_dump(value)
    except yaml.YAMLError:
        return False
    return True


def _count(what: str, given: Any) -> int:
    allowed = f"allowed is a whole number from 1 to {MAX_RANKS}, e.g. {what}=4"
    try:
        number = int(given)
        # int() cuts what is behind the point.
        whole = not isinstance(given, bool) and (isinstance(given, str) or number == given)
    except (TypeError, ValueError, ArithmeticError):
        whole = False
    if not whole or not 1 <= number <= MAX_RANKS:
        raise InvalidRequest(f"{what} {given!r}: {allowed}.")
    return number


def rank_count(given: Any) -> int:
    """Return a number of ranks that this host can hold.

    Raises
    ------
    InvalidRequest
        If it is no whole number from 1, or there is not enough memory for so many.
    """
    import psutil

    ranks = _count("ranks", given)
    memory = psutil.virtual_memory().total
    if ranks * RANK_MEMORY > memory:
        raise InvalidRequest(
            f"ranks {ranks}: each takes about {RANK_MEMORY / 1e6:.0f} MB before it holds any data, and this host has "
            f"{memory / 1e9:.1f} GB. Allowed are up to {memory // RANK_MEMORY}."
        )
    return ranks


def _bytes(given: Any) -> int:
    from dask.utils import format_bytes, parse_bytes
    from distributed.system import MEMORY_LIMIT

    number = config.above_zero(given, parse_bytes)
    if number is None:
        raise InvalidRequest(f"memory {given!r}: allowed is a size above zero for each rank, e.g. 2GB or 500MiB.")
    # Dask would take less without a word.
    if number > MEMORY_LIMIT:
        raise InvalidRequest(
            f"memory {given!r}: a rank cannot have more than its host, and this one has {format_bytes(MEMORY_LIMIT)}."
        )
    return int(number)


def _seconds(what: str, given: Any, setting: str) -> float:
    return config.seconds(setting) if given is None else config.time_span(what, given)
