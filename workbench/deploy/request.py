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
from workbench.errors import InvalidRequest, named
from workbench.hints import Command, Option
from workbench.launch import mpi_library, network, process_manager
from workbench.launch.allocation import enclosing
from workbench.launch.interface import Launcher, Resources
from workbench.launch.launchers import choose, launcher
from workbench.launch.mpiexec import available_cores, has_ulfm
from workbench.launch.walltime import walltime as seconds_of

PROTOCOLS = ("mpi", "tcp")
# A slip of the keyboard: no MPI world is larger.
MAX_RANKS = 100_000
# The same, in bytes for each rank.
MAX_MEMORY = 1e18
# Bytes: Python, Dask and MPI of a rank without data.
RANK_MEMORY = 50_000_000


def request(
    ranks: Any = None,
    *,
    name: str | None = None,
    scheduler: str | None = None,
    threads: Any = 1,
    memory: Any = None,
    mpi: str = "auto",
    protocol: str = "mpi",
    timeout: Any = None,
    idle_timeout: Any = None,
    nodes: Any = None,
    ranks_per_node: Any = None,
    walltime: Any = None,
    queue: str | None = None,
    account: str | None = None,
    constraint: str | None = None,
    reservation: str | None = None,
    gpus_per_rank: Any = None,
    extra: Sequence[str] = (),
    preset: str | None = None,
    interface: str | None = None,
    fault_tolerant: bool = False,
    template: bool | None = None,
    preload: Sequence[str] = (),
) -> Record:
    """Return the record of the cluster that is asked for.

    Parameters
    ----------
    ranks
        Size of the MPI world; None: `ranks_per_node` for each of the `nodes`, or one rank for each core of this host.
    name
        Name of the cluster; None: the first free of ``mpi``, ``mpi-2``, ...
    scheduler
        ``auto``, ``local``, ``here``, ``slurm`` or ``pbs``; None: the setting ``workbench.scheduler``.
    threads
        Threads of each rank, for Dask tasks and for OpenMP and BLAS.
    memory
        Memory of each rank, in bytes or as ``"4 GiB"``; None: an even share of its node.
    mpi
        ``auto``, ``openmpi``, ``mpich`` or ``intelmpi``.
    protocol
        Protocol between the ranks: ``mpi`` (large frames by MPI, all else TLS) or ``tcp`` (all of it TLS).
    timeout
        Seconds, or a time span such as ``"2 minutes"``, from the start of the job until all ranks have to be ready.
    idle_timeout
        The same for the time without clients and tasks after which the cluster ends itself.
    nodes, ranks_per_node, walltime, queue, account, constraint, reservation, gpus_per_rank, extra, preset
        What the job asks its scheduler for, as of `Resources`; `walltime` as ``"02:00:00"`` or ``"2 hours"``. For what
        is None the site's settings hold (``jobqueue.yaml``).
    interface
        Network interface that head and ranks bind; None: the site's, or the one that leads to the other nodes.
    fault_tolerant
        Have the ranks of several nodes go on when one dies (ULFM).
    template
        Fork the ranks of a node from one process that has imported what they need; None: the setting
        ``workbench.template``.
    preload
        Modules that every rank has imported when it is ready, beside those of the setting ``workbench.preload``.

    Raises
    ------
    InvalidRequest
        If something of it is not allowed.
    LaunchError
        If the scheduler, or the MPI for `fault_tolerant`, is not there.
    """
    if not isinstance(protocol, str) or protocol not in PROTOCOLS:
        raise InvalidRequest(option="protocol", given=protocol, allowed=PROTOCOLS)
    if not isinstance(fault_tolerant, bool):
        raise InvalidRequest(option="fault_tolerant", given=fault_tolerant, allowed="True or False")
    # Head and ranks would stumble over them later.
    config.size("comm.threshold")
    config.fraction("comm.pool")
    process_manager.check(fault_tolerant=fault_tolerant)
    starts = launcher(choose(scheduler))
    asked = Resources(
        nodes=_optional("nodes", nodes),
        ranks_per_node=_optional("ranks_per_node", ranks_per_node),
        walltime=None if walltime is None else seconds_of(walltime),
        queue=_text("queue", queue),
        account=_text("account", account),
        constraint=_text("constraint", constraint),
        reservation=_text("reservation", reservation),
        gpus=_optional("gpus_per_rank", gpus_per_rank),
        extra=_texts("extra", extra),
        preset=_text("preset", preset),
    )
    size = _size(ranks, asked, starts)
    of_each = _count("threads", threads)
    limit = None if memory is None else _bytes(memory, here=not starts.batch)
    settled = starts.settle(asked, ranks=size, threads=of_each, memory=limit)
    choice = mpi_library.check_choice(mpi)
    if fault_tolerant:
        _check_fault_tolerance(choice)
    its_nodes = starts.on_nodes(settled)
    spread = starts.batch or is_spread(starts.name)
    if not spread:
        network.address(interface)
    ready_within = _seconds("timeout", timeout, "start-timeout")
    queued_within = config.seconds("queue-timeout") if starts.batch else 0.0
    now = time.time()
    return Record(
        name=registry.free_name() if name is None else registry.check_name(name),
        ranks=size,
        threads=of_each,
        memory=limit,
        protocol=protocol,
        mpi=choice,
        scheduler=starts.name,
        resources=settled,
        interface=interface or its_nodes.interface,
        local_directory=its_nodes.local_directory,
        spread=spread,
        fault_tolerant=fault_tolerant,
        template=_template(template),
        preload=_modules(preload),
        directory=_directory(),
        idle_timeout=_seconds("idle_timeout", idle_timeout, "idle-timeout"),
        created=now,
        deadline=now + queued_within + ready_within,
        ready_within=ready_within,
        message="submitted",
    )


def is_spread(scheduler: str) -> bool:
    """Tell whether a cluster that is started in this very process's surroundings has more hosts than this one."""
    if scheduler != "here":
        return False
    around = enclosing()
    return around is not None and around.leaves_this_host


def _template(asked: bool | None) -> bool:
    wanted = config.get("template") if asked is None else asked
    if not isinstance(wanted, bool):
        raise InvalidRequest(option="workbench.template", given=wanted, allowed="true or false")
    # Elsewhere a process that has loaded system libraries cannot be forked.
    return wanted and sys.platform == "linux"


def _modules(asked: Sequence[str]) -> tuple[str, ...]:
    given = [*_texts("workbench.preload", config.get("preload")), *_texts("preload", asked)]
    for name in given:
        if not all(part.isidentifier() for part in name.split(".")):
            raise InvalidRequest(option="preload", given=name, allowed="the name of a module, e.g. torch")
    return tuple(dict.fromkeys(given))


def _text(option: str, given: Any) -> str | None:
    if given is None or (isinstance(given, str) and given.isprintable()):
        return given
    raise InvalidRequest(option=option, given=given, allowed="a text on one line")


def _texts(option: str, given: Any) -> tuple[str, ...]:
    """Return texts that were given, or a single one."""
    try:
        texts = (given,) if isinstance(given, str) else tuple(given)
    except TypeError:
        texts = (given,)
    if not all(isinstance(text, str) and text.isprintable() for text in texts):
        raise InvalidRequest(option=option, given=given, allowed="a text, or a list of texts, each on one line")
    return texts


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
            f"--fault-tolerant: ranks of {found} cannot go on when one of them dies; Open MPI from version 5 can.",
            option="fault_tolerant",
            given=True,
            hint="Leave it out: a lost world is started again in the same job.",
        )


def _size(ranks: Any, asked: Resources, starts: Launcher) -> int:
    spread = starts.batch or is_spread(starts.name)
    if ranks is not None:
        return rank_count(ranks, here=not spread)
    if not starts.batch:
        around = enclosing() if spread else None
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


def _optional(option: str, given: Any) -> int | None:
    return None if given is None else _count(option, given)


def _count(option: str, given: Any) -> int:
    try:
        number = int(given)
        # int() cuts what is behind the point.
        whole = not isinstance(given, bool) and (isinstance(given, str) or number == given)
    except (TypeError, ValueError, ArithmeticError):
        whole = False
    if not whole or not 1 <= number <= MAX_RANKS:
        allowed = f"a whole number from 1 to {MAX_RANKS}, e.g. {named(option)}=4"
        raise InvalidRequest(option=option, given=given, allowed=allowed)
    return number


def rank_count(given: Any, *, here: bool = True) -> int:
    """Return a number of ranks, with `here` one that this host can hold.

    Raises
    ------
    InvalidRequest
        If it is no whole number from 1, or there is not enough memory for so many.
    """
    import psutil

    ranks = _count("ranks", given)
    memory = psutil.virtual_memory().total
    if here and ranks * RANK_MEMORY > memory:
        raise InvalidRequest(
            f"ranks {ranks}: each takes about {RANK_MEMORY / 1e6:.0f} MB before it holds any data, and this host has "
            f"{memory / 1e9:.1f} GB.",
            option="ranks",
            given=ranks,
            allowed=f"up to {memory // RANK_MEMORY}",
            hint=f"Allowed are up to {memory // RANK_MEMORY}.",
        )
    return ranks


def _bytes(given: Any, *, here: bool) -> int:
    from dask.utils import format_bytes, parse_bytes
    from distributed.system import MEMORY_LIMIT

    number = config.above_zero(given, parse_bytes)
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


def _seconds(option: str, given: Any, setting: str) -> float:
    return config.seconds(setting) if given is None else config.time_span(option, given)
