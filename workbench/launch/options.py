"""The options of a start, each defined one time with its type, default, help and check.

The subcommand ``start``, the form of JupyterLab, `workbench.MPICluster` with its docstring, the record and the
resources of the job derive from these classes.
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
"""Names of the launchers of jobs."""
FLAVORS = ("openmpi", "mpich", "intelmpi")
"""Names of the supported MPIs."""
PROTOCOLS = ("mpi", "tcp")
"""Protocols between ranks."""
GROUPS = {
    "what to start": ("ranks", "name"),
    "ranks and nodes": ("nodes", "ranks_per_node", "threads", "memory", "gpus_per_rank"),
    "scheduler": (
        "scheduler", "preset", "queue", "account", "walltime", "constraint", "reservation", "extra",
    ),
    "environment of the ranks": ("mpi", "preload"),
    "network": ("protocol", "interface", "ssh_tunnel"),
    "work that outlives its job": ("checkpoint", "every", "resubmit"),
    "time limits": ("idle_timeout",),
}  # fmt: skip
"""The groups in which help and pages show the options."""
# A larger number is a typing error.
MAX_RANKS = 100_000
# Bytes of a rank without data, for Python, Dask and MPI.
_RANK_MEMORY = 50_000_000

_T = TypeVar("_T")
Check = Callable[[str, Any], Any]
"""Returns the value of an option from its name and the given value; raises `InvalidRequest`."""


# -- checks ------------------------------------------------------------------------------------------------


def count(option: str, given: Any, least: int = 1) -> int:
    """Return a whole number from `least` on."""
    try:
        number = int(given)
        # int() truncates.
        whole = not isinstance(given, bool) and (isinstance(given, str) or number == given)
    except (TypeError, ValueError, ArithmeticError):
        whole = False
    if not whole or not least <= number <= MAX_RANKS:
        allowed = f"a whole number from {least} to {MAX_RANKS}, e.g. {named(option)}=4"
        raise InvalidRequest(option=option, given=given, allowed=allowed)
    return number


def rank_count(given: Any, *, here: bool = True) -> int:
    """Return a valid number of ranks.

    Raises
    ------
    InvalidRequest
        If `given` is not a whole number from 1, or with `here` if this host has not enough memory.
    """
    from distributed.system import MEMORY_LIMIT

    ranks = count("ranks", given)
    if here and ranks * _RANK_MEMORY > MEMORY_LIMIT:
        raise InvalidRequest(
            f"ranks {ranks} is not valid: each rank needs about {_RANK_MEMORY / 1e6:.0f} MB without data, and this "
            f"host has {MEMORY_LIMIT / 1e9:.1f} GB.",
            option="ranks",
            given=ranks,
            allowed=f"up to {MEMORY_LIMIT // _RANK_MEMORY}",
            hint=f"Choose at most {MEMORY_LIMIT // _RANK_MEMORY}.",
        )
    return ranks


def text(option: str, given: Any) -> str:
    """Return a text on one line."""
    if isinstance(given, str) and given.isprintable():
        return given
    raise InvalidRequest(option=option, given=given, allowed="a text on one line")


def texts(option: str, given: Any) -> tuple[str, ...]:
    """Return one or several texts as a tuple."""
    try:
        items = (given,) if isinstance(given, str) else tuple(given)
    except TypeError:
        items = (given,)
    if not all(isinstance(item, str) and item.isprintable() for item in items):
        raise InvalidRequest(option=option, given=given, allowed="a text, or a list of texts, each on one line")
    return items


def host(option: str, given: Any) -> str:
    """Return a host in the syntax of ``ssh``."""
    if not isinstance(given, str) or not given or given.startswith("-") or any(map(str.isspace, given)):
        raise InvalidRequest(option=option, given=given, allowed="a host in the syntax of ssh, e.g. user@login1")
    return given


def one_of(choices: Sequence[str]) -> Callable[[str, Any], str]:
    """Return a check for one of several values."""

    def check(option: str, given: Any) -> str:
        if not isinstance(given, str) or given not in choices:
            raise InvalidRequest(option=option, given=given, allowed=choices)
        return given

    return check


def _later(_: str, given: Any) -> Any:
    # The valid values depend on other options: see `workbench.deploy.request`.
    return given


# -- options -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClusterOption:
    """One option of a class of options."""

    help: str
    """One line for the user."""
    metavar: str | None
    """Placeholder of the value in help; None for an option without a value."""
    doc: str
    """Text in the docstring."""
    check: Check
    """Returns the value of a given one."""
    choices: tuple[str, ...]
    """All values; empty if they cannot be listed, or only on the machine that starts the cluster."""
    aliases: tuple[str, ...]
    """Other names on a command line."""
    name: str = ""
    """Name of the field, for example ``ranks_per_node``."""
    kinds: tuple[str, ...] = ()
    """Names of the types, without None."""
    default: Any = None
    """Default value."""
    group: str = ""
    """Group in `GROUPS`; empty for an option without a place on the command line."""

    @property
    def typed(self) -> str:
        """Name on a command line, for example ``--ranks-per-node``, or ``ranks`` for a positional argument."""
        return self.name if self.name == "ranks" else f"--{named(self.name)}"

    @property
    def many(self) -> bool:
        """Whether the option may be repeated."""
        return self.kinds == ("Sequence[str]",)

    def checked(self, given: Any) -> Any:
        """Return the value of a given one; None stands for a default that is determined later."""
        return None if given is self.default is None else self.check(self.name, given)


def option(
    default: _T,
    metavar: str | None,
    help: str,  # noqa: A002  (the name in argparse)
    *,
    doc: str = "",
    check: Check | None = None,
    choices: tuple[str, ...] = (),
    aliases: tuple[str, ...] = (),
) -> _T:
    """Return the dataclass field of an option; the arguments are fields of `ClusterOption`.

    The default of `doc` is the help. The default of `check` accepts the `choices`, if any.
    """
    declared = ClusterOption(
        help=help,
        metavar=metavar,
        doc=doc or f"{help[0].upper()}{help[1:]}.",
        check=check or (one_of(choices) if choices else _later),
        choices=choices,
        aliases=aliases,
    )
    option_field: Any = field(default=default, metadata={"option": declared})
    return option_field  # type: ignore[no-any-return]  # the dataclass replaces the field by its default


@dataclass(frozen=True)
class _IdentityOptions:
    """Size, name and launcher of a cluster."""

    ranks: int | None = option(
        None, "N", "number of MPI ranks; default: one per core",
        doc="Size of the MPI world. Default: `ranks_per_node` on each of the `nodes`, or one rank per core of this "
        "host.",
    )  # fmt: skip
    _: KW_ONLY
    name: str | None = option(
        None, "NAME", "name of the cluster; default: mpi, mpi-2, ...",
        doc="Name of the cluster. Default: ``mpi``, ``mpi-2``, ...",
    )  # fmt: skip
    scheduler: str | None = option(
        None, "SCHEDULER", "what starts the job; default: auto", choices=("auto", *SCHEDULERS), check=_later,
        doc="What starts the job: this host (``local``), a batch scheduler, or the allocation of this process "
        "(``here``). Default: the setting ``workbench.scheduler``, ``auto``: the first of Slurm, PBS and this host "
        "that is available.",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """Options for the scheduler, besides ranks, threads and memory; None: not requested."""

    nodes: int | None = option(None, "K", "nodes of the job", check=count)
    ranks_per_node: int | None = option(None, "R", "ranks per node, at most", check=count)
    walltime: int | str | None = option(
        None, "TIME", "time until the scheduler ends the job, for example 02:00:00 or 2h",
        check=lambda _, given: walltime(given),
        doc='Time after which the scheduler ends the job, for example ``"02:00:00"`` or ``"2 hours"``.',
    )  # fmt: skip
    queue: str | None = option(None, "QUEUE", "queue or partition", check=text, aliases=("--partition",))
    account: str | None = option(None, "ACCOUNT", "account or project to charge", check=text, aliases=("--project",))
    constraint: str | None = option(None, "FEATURES", "required features of the nodes", check=text)
    reservation: str | None = option(None, "RESERVATION", "reservation for the job", check=text)
    gpus_per_rank: int | None = option(
        None, "G", "GPUs per rank, which no other rank of its node uses; default: all ranks see all GPUs", check=count,
        doc="GPUs per rank. Each rank gets its own in ``CUDA_VISIBLE_DEVICES`` (and the variables of ROCm, Level Zero "
        "and OpenCL, if they are set). Default: all ranks of a node see all its GPUs.",
    )  # fmt: skip
    extra: Sequence[str] = option(
        (), "DIRECTIVE", "an additional directive, written as after #SBATCH or #PBS; may be repeated", check=texts,
        doc="Additional directives for the scheduler, written as after ``#SBATCH`` or ``#PBS``.",
    )  # fmt: skip
    preset: str | None = option(
        None, "PRESET", "section of jobqueue.yaml with the site's settings", check=text,
        doc="Section of ``jobqueue.yaml`` with the site's settings, which apply to all omitted options.",
    )  # fmt: skip


# The other options of a job request something from a scheduler; GPUs exist on a host without a scheduler, too.
WITHOUT_SCHEDULER = frozenset({"gpus_per_rank"})
"""The options of a job that are possible without a batch scheduler."""


@dataclass(frozen=True, kw_only=True)
class Resources(JobOptions):
    """The validated request to the scheduler; in a record, `walltime` is that of the submitted job in seconds."""

    walltime: int | None = None
    extra: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RecordOptions:
    """Validated options that the record of a cluster keeps for the head and the ranks."""

    interface: str | None = option(None, "INTERFACE", "network interface of head and ranks")
    preload: Sequence[str] = option(
        (), "MODULE", "module that ranks import before they are ready; may be repeated", check=texts,
        doc="Modules that every rank imports before it is ready, for example ``workbench.torch``, and the modules of "
        "the ``PRELOAD`` of a package, which its first uses need.",
    )  # fmt: skip
    threads: int = option(
        1, "T", "threads per rank; default: 1", check=count,
        doc="Threads per rank, for Dask tasks and for OpenMP and BLAS (``OMP_NUM_THREADS`` and similar variables).",
    )  # fmt: skip
    memory: int | str | None = option(
        None, "SIZE", "memory limit of each rank, for example 2GB; default: node memory divided by ranks",
        doc='Memory limit of each rank, in bytes or for example ``"4 GiB"``. Default: the memory of the node divided '
        "by its ranks.",
    )  # fmt: skip
    mpi: str = option(
        "auto", "MPI", "the MPI that mpi4py must use; default: any", choices=("auto", *FLAVORS),
        doc="The MPI that mpi4py must use.",
    )  # fmt: skip
    protocol: str = option(
        "mpi", "PROTOCOL", "protocol between ranks: mpi or tcp; default: mpi", choices=PROTOCOLS,
        doc="Protocol between ranks, always with TLS.",
    )  # fmt: skip
    checkpoint: str | None = option(
        None, "PATH", "folder for what workbench.keep keeps; default: workbench-kept/NAME-ID", check=text,
        doc="Folder for what `workbench.keep` keeps, on a file system that all nodes share. Default: "
        "``workbench-kept/NAME-ID`` in the working directory.",
    )  # fmt: skip
    every: float | str = option(
        1800.0, "TIME", "time between two saves of what is kept; default: 30 minutes", check=config.time_span,
        doc='Time between two saves of what is kept, in seconds or for example ``"10 minutes"``.',
    )  # fmt: skip
    resubmit: int = option(
        0, "N", "further jobs that continue the cluster when its job ends; default: 0",
        check=functools.partial(count, least=0),
        doc="Further batch jobs that continue the cluster: at the end of the walltime, after a requeue, and when the "
        "head is killed. What `workbench.keep` keeps is there again.",
    )  # fmt: skip
    idle_timeout: float | str | None = option(
        None, "S", "time without clients and tasks after which the cluster ends, for example '2h'",
        check=config.time_span,
        doc="Time without clients and tasks after which the cluster ends. Default: ``workbench.idle-timeout``.",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ClusterOptions(RecordOptions, JobOptions, _IdentityOptions):
    """All options of a start, as given."""

    walltime: str | None = None
    ssh_tunnel: str | None = option(
        None, "HOST", "host, in the syntax of ssh, through which the head is reached", check=host,
        doc="Host, in the syntax of ``ssh``, through which the head is reached.",
    )  # fmt: skip

    def checked(self) -> dict[str, Any]:
        """Return the validated values of all options by name; checks that depend on other options are elsewhere.

        Raises
        ------
        InvalidRequest
            If an option is not valid.
        """
        return {each.name: each.checked(getattr(self, each.name)) for each in options()}


@functools.cache
def options(of: type = ClusterOptions) -> tuple[ClusterOption, ...]:
    """Return the options of a class, in their order."""
    # A derived class may change only the type of an option.
    declared = {
        each.name: each.metadata["option"]
        for cls in reversed(of.__mro__)
        if is_dataclass(cls)
        for each in fields(cls)
        if each.metadata
    }
    groups = {name: group for group, names in GROUPS.items() for name in names}
    return tuple(
        replace(
            declared[each.name],
            name=each.name,
            kinds=_kinds(str(each.type)),
            default=each.default,
            group=groups.get(each.name, ""),
        )
        for each in fields(of)
        if each.name in declared
    )


def _kinds(annotation: str) -> tuple[str, ...]:
    return tuple(kind for kind in annotation.split(" | ") if kind != "None")
