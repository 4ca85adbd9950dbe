"""From what a user asks for to a record, validated once."""

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
from workbench.launch import mpi_library, network, process_manager
from workbench.launch.allocation import current_allocation
from workbench.launch.interface import Launcher
from workbench.launch.launchers import choose, launcher
from workbench.launch.mpiexec import available_cores, has_ulfm
from workbench.launch.options import ClusterOptions, RecordOptions, Resources, count, options, texts

# A slip of the keyboard, in bytes for each rank.
MAX_MEMORY = 1e18
# Bytes: Python, Dask and MPI of a rank without data.
RANK_MEMORY = 50_000_000


def request(ranks: Any = None, **options: Any) -> Record:
    """Return the record of the cluster that is asked for, by the options of `ClusterOptions`; raises as `record_of`."""
    return record_of(ClusterOptions(ranks, **options))


def record_of(given: ClusterOptions) -> Record:
    """Return the record of the cluster that is asked for.

    Raises
    ------
    InvalidRequest
        If something of it is not allowed.
    LaunchError
        If the scheduler, or the MPI for `fault_tolerant`, is not there.
    """
    values = given.checked()
    # Head and ranks would stumble over them later.
    config.size("comm.threshold")
    config.fraction("comm.pool")
    process_manager.check(fault_tolerant=values["fault_tolerant"])
    starts = launcher(choose(given.scheduler))
    asked = Resources(**{each.name: values[each.name] for each in options(Resources)})
    size = _size(given.ranks, asked, starts)
    memory = None if given.memory is None else _bytes(given.memory, here=not starts.batch)
    settled = starts.resolve(asked, ranks=size, threads=values["threads"], memory=memory)
    if values["fault_tolerant"]:
        _check_fault_tolerance(values["mpi"])
    its_nodes = starts.node_settings(settled)
    spread = starts.batch or is_spread(starts.name)
    if not spread:
        network.address(given.interface)
    ready_within = values["timeout"] or config.seconds("start-timeout")
    queued_within = config.seconds("queue-timeout") if starts.batch else 0.0
    now = time.time()
    kept = {each.name: values[each.name] for each in options(RecordOptions)} | {
        "memory": memory,
        "interface": given.interface or its_nodes.interface,
        "template": _template(given.template),
        "preload": _modules(values["preload"]),
        "idle_timeout": values["idle_timeout"] or config.seconds("idle-timeout"),
    }
    return Record(
        name=registry.free_name() if given.name is None else registry.check_name(given.name),
        ranks=size,
        scheduler=starts.name,
        resources=settled,
        local_directory=its_nodes.local_directory,
        spread=spread,
        directory=_directory(),
        created=now,
        deadline=now + queued_within + ready_within,
        ready_within=ready_within,
        message="submitted",
        **kept,
    )


def is_spread(scheduler: str) -> bool:
    """Tell whether a cluster that is started in this very process's surroundings has more hosts than this one."""
    if scheduler != "here":
        return False
    around = current_allocation()
    return around is not None and around.leaves_this_host


def _template(asked: bool | None) -> bool:
    wanted = config.get("template") if asked is None else asked
    if not isinstance(wanted, bool):
        raise InvalidRequest(option="workbench.template", given=wanted, allowed="true or false")
    # Elsewhere a process that has loaded system libraries cannot be forked.
    return wanted and sys.platform == "linux"


def _modules(asked: Sequence[str]) -> tuple[str, ...]:
    given = [*texts("workbench.preload", config.get("preload")), *asked]
    for name in given:
        if not all(part.isidentifier() for part in name.split(".")):
            raise InvalidRequest(option="preload", given=name, allowed="the name of a module, e.g. torch")
    return tuple(dict.fromkeys(given))


def _directory() -> str:
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        raise InvalidRequest(
            "the working directory of this process has been removed, and head and ranks have to run in it.",
            hint="Change to another one: os.chdir(...).",
        ) from None


def _check_fault_tolerance(choice: str) -> None:
    found = mpi_library.find(choice)
    if not has_ulfm(found):
        raise InvalidRequest(
            f"--fault-tolerant: ranks of {found} cannot continue when one of them dies; "
            "those of Open MPI 5 or newer can.",
            option="fault_tolerant",
            given=True,
            hint="Leave it out: a lost world is started again in the same job.",
        )


def _size(ranks: Any, asked: Resources, starts: Launcher) -> int:
    spread = starts.batch or is_spread(starts.name)
    if ranks is not None:
        return rank_count(ranks, here=not spread)
    if not starts.batch:
        around = current_allocation() if spread else None
        return sum(around.slots) or len(around.nodes) if around else available_cores()
    if asked.nodes is None or asked.ranks_per_node is None:
        raise InvalidRequest(
            "how many ranks?",
            option="ranks",
            hint=(
                "Give their number, or both ",
                Option("nodes"),
                " and ",
                Option("ranks_per_node"),
                ", e.g. ",
                Command("start", "64 --nodes 4"),
                ".",
            ),
        )
    return asked.nodes * asked.ranks_per_node


def rank_count(given: Any, *, here: bool = True) -> int:
    """Return a number of ranks, with `here` one that this host can hold.

    Raises
    ------
    InvalidRequest
        If it is no whole number from 1, or there is not enough memory for so many.
    """
    import psutil

    ranks = count("ranks", given)
    memory = psutil.virtual_memory().total
    if here and ranks * RANK_MEMORY > memory:
        raise InvalidRequest(
            f"ranks {ranks}: each takes about {RANK_MEMORY / 1e6:.0f} MB before it holds any data, and this host has "
            f"{memory / 1e9:.1f} GB.",
            option="ranks",
            given=ranks,
            allowed=f"up to {memory // RANK_MEMORY}",
            hint=f"Choose at most {memory // RANK_MEMORY}.",
        )
    return ranks


def _bytes(given: Any, *, here: bool) -> int:
    from dask.utils import format_bytes, parse_bytes
    from distributed.system import MEMORY_LIMIT

    number = config.parse_positive(given, parse_bytes)
    if number is None or number > MAX_MEMORY:
        raise InvalidRequest(
            option="memory", given=given, allowed="a size above zero for each rank, e.g. 2GB or 500MiB"
        )
    # Dask would take less without a word.
    if here and number > MEMORY_LIMIT:
        raise InvalidRequest(
            f"memory {given!r}: a rank cannot have more than its host, and this one has {format_bytes(MEMORY_LIMIT)}.",
            option="memory",
            given=given,
            allowed=f"up to {format_bytes(MEMORY_LIMIT)}",
        )
    return int(number)
