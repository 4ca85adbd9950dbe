"""What a cluster can be asked for: each option once, with its type, its default, its words and its check.

The verb ``start``, the form of JupyterLab, `workbench.MPICluster` with its docstring, the record and the resources of
the job derive from these classes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, is_dataclass, replace
from typing import Any, TypeVar

from workbench import config
from workbench.errors import InvalidRequest, named
from workbench.launch.walltime import walltime

SCHEDULERS = ("local", "here", "slurm", "pbs")
"""What starts jobs, by name."""
FLAVOURS = ("openmpi", "mpich", "intelmpi")
"""The MPIs that are known."""
PROTOCOLS = ("mpi", "tcp")
"""What ranks speak with each other."""
GROUPS = {
    "what to start": ("ranks", "name"),
    "ranks and nodes": ("nodes", "ranks_per_node", "threads", "memory", "gpus_per_rank"),
    "scheduler": (
        "scheduler", "preset", "queue", "account", "walltime", "constraint", "reservation", "extra",
    ),
    "environment of the ranks": ("mpi", "preload", "template", "fault_tolerant"),
    "network": ("protocol", "interface", "ssh_tunnel"),
    "time limits": ("timeout", "idle_timeout"),
}  # fmt: skip
"""The groups in which help and pages show the options."""
# A slip of the keyboard: no MPI world is larger.
MAX_RANKS = 100_000

_T = TypeVar("_T")
Check = Callable[[str, Any], Any]
"""From the name of an option and what was given for it to its value; raises `InvalidRequest`."""


# -- checks ------------------------------------------------------------------------------------------------


def count(option: str, given: Any) -> int:
    """Return a whole number from 1 on."""
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


def text(option: str, given: Any) -> str:
    """Return a text on one line."""
    if isinstance(given, str) and given.isprintable():
        return given
    raise InvalidRequest(option=option, given=given, allowed="a text on one line")


def texts(option: str, given: Any) -> tuple[str, ...]:
    """Return texts that were given, or a single one."""
    try:
        many = (given,) if isinstance(given, str) else tuple(given)
    except TypeError:
        many = (given,)
    if not all(isinstance(each, str) and each.isprintable() for each in many):
        raise InvalidRequest(option=option, given=given, allowed="a text, or a list of texts, each on one line")
    return many


def flag(option: str, given: Any) -> bool:
    """Return whether it is set."""
    if not isinstance(given, bool):
        raise InvalidRequest(option=option, given=given, allowed="True or False")
    return given


def host(option: str, given: Any) -> str:
    """Return a host as ``ssh`` takes it."""
    if not isinstance(given, str) or not given or given.startswith("-") or any(map(str.isspace, given)):
        raise InvalidRequest(option=option, given=given, allowed="a host as ssh takes it, e.g. user@login1")
    return given


def one_of(choices: Sequence[str]) -> Callable[[str, Any], str]:
    """Return the check that a value is one of these."""

    def check(option: str, given: Any) -> str:
        if not isinstance(given, str) or given not in choices:
            raise InvalidRequest(option=option, given=given, allowed=choices)
        return given

    return check


def _later(_: str, given: Any) -> Any:
    # What is allowed depends on the rest of the request: see `workbench.deploy.request`.
    return given


# -- options -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClusterOption:
    """One option of a class of options."""

    help: str
    """One line for the user."""
    metavar: str | None
    """What stands for the value in help; None: an option without a value."""
    doc: str
    """What the docstring has of it."""
    check: Check
    """Makes the value of what was given."""
    choices: tuple[str, ...]
    """All values; empty: they cannot be listed, or only where the cluster is started."""
    aliases: tuple[str, ...]
    """Other names where it is typed."""
    negative: bool
    """Whether it is typed to turn off what it is named for, as ``--no-NAME``."""
    name: str = ""
    """As ``ranks_per_node``."""
    kinds: tuple[str, ...] = ()
    """Its types by their names, None left out."""
    default: Any = None
    """What stands for it where it is not given."""
    group: str = ""
    """Its group in `GROUPS`; empty: it is not typed."""

    @property
    def typed(self) -> str:
        """How it is typed: as ``--ranks-per-node``, or for a word at its place as ``ranks``."""
        if self.name == "ranks":
            return self.name
        return f"--{'no-' if self.negative else ''}{named(self.name)}"

    @property
    def many(self) -> bool:
        """Whether it may be given several times, each with a value."""
        return self.kinds == ("Sequence[str]",)

    def checked(self, given: Any) -> Any:
        """Return the value of what was given; None stands for a default that is found later."""
        return None if given is self.default is None else self.check(self.name, given)


def option(
    default: _T,
    metavar: str | None,
    help: str,  # noqa: A002  (as argparse calls it)
    *,
    doc: str = "",
    check: Check | None = None,
    choices: tuple[str, ...] = (),
    aliases: tuple[str, ...] = (),
    negative: bool = False,
) -> _T:
    """Return the field of a dataclass that is an option; the values are those of `ClusterOption`.

    Notes
    -----
    Without `doc` the docstring has the help. Without `check` one of the `choices` has to be given, if there are any.
    """
    stated = ClusterOption(
        help=help,
        metavar=metavar,
        doc=doc or f"{help[0].upper()}{help[1:]}.",
        check=check or (one_of(choices) if choices else _later),
        choices=choices,
        aliases=aliases,
        negative=negative,
    )
    made: Any = field(default=default, metadata={"option": stated})
    return made  # type: ignore[no-any-return]  # a dataclass makes the default of it


@dataclass(frozen=True)
class _NamedOptions:
    """Which cluster is asked for, and of whom."""

    ranks: int | None = option(
        None, "N", "number of MPI ranks; default: one for each core",
        doc="Size of the MPI world. Default: `ranks_per_node` for each of the `nodes`, or one for each core of this "
        "host.",
    )  # fmt: skip
    _: KW_ONLY
    name: str | None = option(
        None, "NAME", "name of the cluster; default: mpi, mpi-2, ...",
        doc="Name of the cluster. Default: ``mpi``, ``mpi-2``, ...",
    )  # fmt: skip
    scheduler: str | None = option(
        None, "SCHEDULER", "what starts the job; default: auto", choices=("auto", *SCHEDULERS), check=_later,
        doc="What starts the job: this host (``local``), a batch scheduler, or the allocation that this process is in "
        "(``here``). Default: the setting ``workbench.scheduler``, ``auto``: Slurm, PBS or this host, the first there "
        "is.",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """What a scheduler is asked for, beside ranks, threads and memory; None: not asked for."""

    nodes: int | None = option(None, "K", "nodes of the job", check=count)
    ranks_per_node: int | None = option(None, "R", "most ranks of a node", check=count)
    walltime: int | str | None = option(
        None, "TIME", "time until the scheduler ends the job, as 02:00:00 or 2h",
        check=lambda _, given: walltime(given),
        doc='Time after which the scheduler ends the job, as ``"02:00:00"`` or ``"2 hours"``.',
    )  # fmt: skip
    queue: str | None = option(None, "QUEUE", "queue or partition", check=text, aliases=("--partition",))
    account: str | None = option(None, "ACCOUNT", "account or project that pays", check=text, aliases=("--project",))
    constraint: str | None = option(None, "FEATURES", "features that the nodes have to have", check=text)
    reservation: str | None = option(None, "RESERVATION", "reservation to run in", check=text)
    gpus_per_rank: int | None = option(None, "G", "GPUs of each rank", check=count)
    extra: Sequence[str] = option(
        (), "DIRECTIVE", "one more directive, as behind #SBATCH or #PBS; may come again", check=texts,
        doc="More directives for the scheduler, as they would stand behind ``#SBATCH`` or ``#PBS``.",
    )  # fmt: skip
    preset: str | None = option(
        None, "PRESET", "section of jobqueue.yaml with the site's settings", check=text,
        doc="Section of ``jobqueue.yaml`` with the site's settings, which hold for all that is not given here.",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Resources(JobOptions):
    """What the job of a cluster asks its scheduler for: what was given, checked.

    Notes
    -----
    Once a record is made of a request, `walltime` is the one that the job is submitted with, in seconds.
    """

    walltime: int | None = None
    extra: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RecordOptions:
    """What the record of a cluster keeps as it was given, checked, for its head and its ranks."""

    interface: str | None = option(None, "INTERFACE", "network interface that head and ranks bind")
    fault_tolerant: bool = option(
        False, None, "let the ranks of several nodes go on when one dies, on slower networks", check=flag,
        doc="Have the ranks of several nodes go on when one dies. It costs Open MPI its fastest networks; on one node "
        "it is always so, and costs nothing.",
    )  # fmt: skip
    preload: Sequence[str] = option(
        (), "MODULE", "module that ranks have imported when they are ready", check=texts,
        doc="Modules that every rank has imported when it is ready.",
    )  # fmt: skip
    template: bool | None = option(
        None, None, "have each rank import by itself, rather than fork it from one that has", negative=True,
        doc="Fork the ranks of a node from one process that has imported what they need; default: the setting "
        "``workbench.template``, which is true.",
    )  # fmt: skip
    threads: int = option(
        1, "T", "threads of each rank; default: 1", check=count,
        doc="Threads of each rank, for Dask tasks and for OpenMP and BLAS (``OMP_NUM_THREADS`` and friends).",
    )  # fmt: skip
    memory: int | str | None = option(
        None, "SIZE", "memory limit of each rank, as 2GB; default: an even share",
        doc='Memory limit of each rank, in bytes or as ``"4 GiB"``. Default: an even share of its node.',
    )  # fmt: skip
    mpi: str = option(
        "auto", "MPI", "the MPI that mpi4py has to be using; default: whichever it is", choices=("auto", *FLAVOURS),
        doc="The MPI that mpi4py has to be using.",
    )  # fmt: skip
    protocol: str = option(
        "mpi", "PROTOCOL", "protocol between ranks: mpi or tcp; default: mpi", choices=PROTOCOLS,
        doc="Protocol between ranks; always under TLS.",
    )  # fmt: skip
    idle_timeout: float | str | None = option(
        None, "S", "time without clients and tasks after which it ends, as '2h'", check=config.time_span,
        doc="Time without clients and tasks after which the cluster ends. Default: ``workbench.idle-timeout``.",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ClusterOptions(RecordOptions, JobOptions, _NamedOptions):
    """Everything that a cluster can be asked for, as it was given."""

    walltime: str | None = None
    timeout: float | str | None = option(
        None, "S", "seconds until all ranks have to be ready", check=config.time_span,
        doc='Seconds, or a time span such as ``"2 minutes"``, from the start of the job until all ranks have to be '
        "ready. Default: ``workbench.start-timeout``. A job may wait in its queue for ``workbench.queue-timeout`` "
        "before.",
    )  # fmt: skip
    ssh_tunnel: str | None = option(
        None, "HOST", "host, as ssh takes it, through which the head is reached", check=host,
        doc="Host, as ``ssh`` takes it, through which the head is reached.",
    )  # fmt: skip

    def checked(self) -> dict[str, Any]:
        """Return the values of all options by their names, checked as far as they do not depend on each other.

        Raises
        ------
        InvalidRequest
            If something of it is not allowed.
        """
        return {each.name: each.checked(getattr(self, each.name)) for each in options()}


@functools.cache
def options(of: type = ClusterOptions) -> tuple[ClusterOption, ...]:
    """Return the options of a class of options, in their order."""
    # A class that derives from another may state another type for an option, and nothing else.
    stated = {
        each.name: each.metadata["option"]
        for cls in reversed(of.__mro__)
        if is_dataclass(cls)
        for each in fields(cls)
        if each.metadata
    }
    groups = {name: group for group, names in GROUPS.items() for name in names}
    return tuple(
        replace(
            stated[each.name],
            name=each.name,
            kinds=_kinds(str(each.type)),
            default=each.default,
            group=groups.get(each.name, ""),
        )
        for each in fields(of)
        if each.name in stated
    )


def _kinds(annotation: str) -> tuple[str, ...]:
    return tuple(kind for kind in annotation.split(" | ") if kind != "None")


def from_typed(given: dict[str, Any]) -> ClusterOptions:
    """Return what was typed, by the names that it has there, as ``no_template``; None stands for a default."""
    kept = {name: value for name, value in given.items() if value is not None}
    for each in options():
        if each.negative and kept.pop(f"no_{each.name}", False):
            kept[each.name] = False
    return ClusterOptions(**kept)
