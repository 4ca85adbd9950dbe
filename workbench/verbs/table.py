"""The verbs and their options: one table for the parser, the help and the completion."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from workbench import registry
from workbench.launch.choose import SCHEDULERS
from workbench.launch.mpi import FLAVOURS
from workbench.launch.request import PROTOCOLS

NOTEBOOK = "%mpicluster"
"""Where verbs are typed: after this in a notebook ..."""
TERMINAL = "workbench"
"""... and after this in a terminal."""


@dataclass(frozen=True)
class Argument:
    """One word or option of a verb."""

    name: str
    """``--option``, or for a word its key in lower case."""
    help: str
    """One line for the user."""
    metavar: str | None = None
    """What stands for the value in help; None: an option without a value."""
    values: Callable[[], Iterable[str]] = tuple
    """Values that completion offers."""
    required: bool = False
    """Whether a word has to be given."""

    @property
    def is_option(self) -> bool:
        """Whether it is an option rather than a word at its place."""
        return self.name.startswith("-")

    @property
    def usage(self) -> str:
        """How it stands in a line of usage."""
        text = " ".join(filter(None, (self.name if self.is_option else "", self.metavar)))
        return text if self.required else f"[{text}]"


@dataclass(frozen=True)
class Verb:
    """One subcommand."""

    name: str
    """What is typed."""
    help: str
    """What it does, in a sentence."""
    arguments: tuple[Argument, ...] = ()
    """Words in their order, then options."""
    places: tuple[str, ...] = (NOTEBOOK, TERMINAL)
    """Where it can be typed."""

    def at(self, place: str) -> tuple[Argument, ...]:
        """Return the arguments that it has in a place: in a terminal everything can answer in JSON."""
        return (*self.arguments, _JSON) if place == TERMINAL else self.arguments

    def usage(self, place: str) -> str:
        """Return the line of usage."""
        return " ".join([place, self.name, *(argument.usage for argument in self.at(place))])


def _clusters() -> list[str]:
    return registry.names()


_JSON = Argument("--json", "print one JSON object")
_NAME = Argument("name", "name of the cluster; default: the one in use, or the only one", "NAME", _clusters)
_RANKS = Argument("ranks", "number of MPI ranks; default: one for each core", "N")
_MPI = Argument(
    "--mpi", "the MPI that mpi4py has to be using; default: whichever it is", "MPI", lambda: ("auto", *FLAVOURS)
)

VERBS = (
    Verb(
        "start",
        "start a cluster of N ranks",
        (
            _RANKS,
            Argument("--name", "name of the cluster; default: mpi, mpi-2, ...", "NAME"),
            Argument("--scheduler", "what starts the job; default: auto", "SCHEDULER", lambda: SCHEDULERS),
            Argument("--threads", "threads of each rank; default: 1", "T"),
            Argument("--memory", "memory limit of each rank, as 2GB; default: an even share", "SIZE"),
            _MPI,
            Argument("--protocol", "protocol between ranks: mpi or tcp; default: mpi", "PROTOCOL", lambda: PROTOCOLS),
            Argument("--timeout", "seconds until all ranks have to be ready", "S"),
            Argument("--idle-timeout", "time without clients and tasks after which it ends, as '2h'", "S"),
            Argument("--dry-run", "print what would run, and start nothing"),
        ),
    ),
    Verb("status", "tell how a cluster is", (_NAME,)),
    Verb("list", "list all clusters of yours"),
    Verb(
        "attach",
        "use a cluster that runs already",
        (Argument("name", "name of the cluster", "NAME", _clusters, required=True),),
        (NOTEBOOK,),
    ),
    Verb(
        "logs",
        "print the logs of a cluster, also after its end",
        (_NAME, Argument("--rank", "only that of one rank, as 3 or, in a later world, w1.3", "RANK")),
    ),
    Verb(
        "scale",
        "have N ranks in total, by adding or removing whole worlds",
        (Argument("ranks", "number of ranks in all worlds together", "N", required=True), _NAME),
    ),
    Verb("restart", "end all ranks and start them again; results on them are lost", (_NAME,)),
    Verb("stop", "end a cluster", (_NAME, Argument("--all", "end all clusters of yours"))),
    Verb("script", "print the script of a cluster's job", (_NAME,)),
    Verb("doctor", "check this installation, and a running cluster if it is named", (_NAME, _MPI)),
    Verb(
        "demo",
        "train on the flights data on an MPI world of this machine",
        (Argument("--ranks", "number of MPI ranks; default: 4", "N"), _MPI),
        (TERMINAL,),
    ),
    Verb("bench", "measure against a reference", (Argument("bench", "what to measure", "NAME"),), (TERMINAL,)),
)


def verbs(place: str) -> dict[str, Verb]:
    """Return the verbs that can be typed in a place, by their names."""
    return {verb.name: verb for verb in VERBS if place in verb.places}


def overview(place: str) -> str:
    """Return a line of usage and a sentence for every verb."""
    lines = [f"{verb.usage(place)}\n    {verb.help}" for verb in verbs(place).values()]
    return "\n".join([*lines, f"{place} VERB --help\n    tell what the options mean"])
