"""Validates the options of a start, and makes the record of the cluster."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workbench import config
from workbench.deploy import registry
from workbench.deploy.record import Record
from workbench.errors import InvalidRequest
from workbench.hints import Command, Option
from workbench.host import network
from workbench.launch import multinode
from workbench.launch.allocation import current_allocation
from workbench.launch.interface import Launcher
from workbench.launch.jobqueue import site
from workbench.launch.launchers import choose, launcher, silent
from workbench.launch.mpi_library import available_cores
from workbench.launch.options import ClusterOptions, RecordOptions, Resources, options, rank_count

# Bytes per rank. A larger value is a typing error.
MAX_MEMORY = 1e18


def record_of(given: ClusterOptions) -> Record:
    """Return the record of a requested cluster.

    Raises
    ------
    InvalidRequest
        If an option is not valid.
    LaunchError
        If the scheduler is not found.
    """
    values = given.checked()
    config.check()  # otherwise head and ranks would fail later, or ignore a name with a typing error
    multinode.check()
    chosen = launcher(choose(given.scheduler))
    requested = Resources(**{each.name: values[each.name] for each in options(Resources)})
    size = _size(given.ranks, requested, chosen)
    if values["resubmit"] and not chosen.batch:
        allowed = f"0 with the scheduler {chosen.name}, which has no jobs that end"
        raise InvalidRequest(option="resubmit", given=values["resubmit"], allowed=allowed)
    memory = None if given.memory is None else _bytes(given.memory, here=not chosen.batch)
    try:
        resources = chosen.resolve(requested, ranks=size, threads=values["threads"], memory=memory)
    except InvalidRequest as error:
        if absent := silent(given.scheduler, chosen.name):
            raise error.converted(type(error), f"{error.message} {absent}.") from error
        raise
    settings = site(chosen.name, resources.preset) if chosen.batch else None
    spread = chosen.batch or is_spread(chosen.name)
    if not spread:
        network.address(given.interface)
    ready_within = config.seconds("start-timeout")
    queued_within = config.seconds("queue-timeout") if chosen.batch else 0.0
    now = time.time()
    stored = {each.name: values[each.name] for each in options(RecordOptions)} | {
        "memory": memory,
        "interface": given.interface or (settings.interface if settings else None),
        "preload": _modules(values["preload"]),
        "checkpoint": values["checkpoint"] and str(Path(values["checkpoint"]).expanduser().absolute()),
        "idle_timeout": values["idle_timeout"] or config.seconds("idle-timeout"),
    }
    return Record(
        name=registry.free_name() if given.name is None else registry.check_name(given.name),
        ranks=size,
        scheduler=chosen.name,
        resources=resources,
        local_directory=settings.local_directory if settings else None,
        spread=spread,
        directory=_directory(),
        created=now,
        deadline=now + queued_within + ready_within,
        ready_within=ready_within,
        # On other systems a process that has loaded system libraries cannot be forked.
        template=config.switch("template") and sys.platform == "linux",
        message="submitted",
        **stored,
    )


def is_spread(scheduler: str) -> bool:
    """Return whether a cluster in the allocation of this process uses more hosts than this one."""
    if scheduler != "here":
        return False
    allocation = current_allocation()
    return allocation is not None and allocation.leaves_this_host


def _modules(requested: Sequence[str]) -> tuple[str, ...]:
    for name in requested:
        if not all(part.isidentifier() for part in name.split(".")):
            raise InvalidRequest(option="preload", given=name, allowed="the name of a module, e.g. torch")
    return tuple(dict.fromkeys(requested))


def _directory() -> str:
    try:
        directory = str(Path.cwd())
        directory.encode()
    except FileNotFoundError:
        raise InvalidRequest(
            "the working directory of this process has been removed, but head and ranks must run in this directory.",
            hint="Change to another directory with os.chdir(...).",
        ) from None
    except UnicodeEncodeError:
        raise InvalidRequest(
            f"the name of the working directory, {directory!r}, is not in UTF-8, so no record can contain the name.",
            hint="Rename the directory, or change to another directory with os.chdir(...).",
        ) from None
    return directory


def _size(ranks: Any, requested: Resources, chosen: Launcher) -> int:
    spread = chosen.batch or is_spread(chosen.name)
    if ranks is not None:
        return rank_count(ranks, here=not spread)
    if not chosen.batch:
        allocation = current_allocation() if spread else None
        return sum(allocation.slots) or len(allocation.nodes) if allocation else available_cores()
    if requested.nodes is None or requested.ranks_per_node is None:
        raise InvalidRequest(
            "The number of ranks is missing.",
            option="ranks",
            hint=(
                "Pass the number of ranks, or both ",
                Option("nodes"),
                " and ",
                Option("ranks_per_node"),
                ", for example ",
                Command("start", "64 --nodes 4"),
                ".",
            ),
        )
    return requested.nodes * requested.ranks_per_node


def _bytes(given: Any, *, here: bool) -> int:
    from dask.utils import format_bytes, parse_bytes
    from distributed.system import MEMORY_LIMIT

    number = config.parse_positive(given, parse_bytes)
    if number is None or number > MAX_MEMORY:
        raise InvalidRequest(
            option="memory", given=given, allowed="a size above zero for each rank, e.g. 2GB or 500MiB"
        )
    # Dask would silently use a smaller limit.
    if here and number > MEMORY_LIMIT:
        allowed = f"up to {format_bytes(MEMORY_LIMIT)} for each rank, the memory of this host"
        raise InvalidRequest(option="memory", given=given, allowed=allowed)
    return int(number)
