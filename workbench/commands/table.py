"""The verbs and their options: one table for the parser, the help and the completion."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from workbench.deploy import registry
from workbench.hints import NOTEBOOK, TERMINAL
from workbench.launch.jobqueue import presets
from workbench.launch.options import JobOptions, Option, options


def _interfaces() -> list[str]:
    import psutil

    return list(psutil.net_if_addrs())


# Values of options that can be listed where somebody types only.
_FOUND_HERE: dict[str, Callable[[], Iterable[str]]] = {"preset": presets, "interface": _interfaces}


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
    aliases: tuple[str, ...] = ()
    """Other names of an option."""
    many: bool = False
    """Whether an option may be given several times, each with a value."""
    number: bool = False
    """Whether the value is a whole number."""
    batch_only: bool = False
    """Whether only batch schedulers can be asked for it."""

    @classmethod
    def of(cls, option: Option) -> Argument:
        """Return an option of a cluster as it is typed."""
        words = option.words
        return cls(
            option.typed,
            words.help,
            words.metavar,
            _FOUND_HERE.get(option.name) or ((lambda: words.choices) if words.choices else tuple),
            aliases=words.aliases,
            many=option.many,
            number=option.kinds == ("int",),
            batch_only=option.name in {each.name for each in options(JobOptions)},
        )

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
        return (*self.arguments, *([_JSON] if place == TERMINAL else []), _VERBOSE)

    def usage(self, place: str) -> str:
        """Return the line of usage."""
        return " ".join([place, self.name, *(argument.usage for argument in self.at(place))])


def _clusters() -> list[str]:
    return registry.names()


def _tables() -> list[str]:
    from workbench.metrics.frames import TABLES

    return list(TABLES)


_JSON = Argument("--json", "print one JSON object")
_VERBOSE = Argument("--verbose", "log commands of schedulers and processes, here and in what is started")
_NAME = Argument("name", "name of the cluster; default: the one in use, or the only one", "NAME", _clusters)
_MPI, _TUNNEL = (Argument.of(each) for each in options() if each.name in ("mpi", "ssh_tunnel"))

VERBS = (
    Verb(
        "start",
        "start a cluster of N ranks",
        (
            *map(Argument.of, options()),
            Argument("--dry-run", "print what would run, and start nothing"),
        ),
    ),
    Verb("status", "tell how a cluster is", (_NAME,)),
    Verb(
        "list",
        "list all clusters of yours",
        (Argument("--all", "with those that have ended in the last days: when, why, and where their logs are"),),
    ),
    Verb(
        "attach",
        "use a cluster that runs already",
        (Argument("name", "name of the cluster", "NAME", _clusters, required=True), _TUNNEL),
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
    Verb(
        "where",
        "tell where each rank is in a call on all ranks that is going on",
        (_NAME, Argument("--stacks", "with the stack of each rank")),
    ),
    Verb(
        "metrics",
        "write what was measured: as OpenMetrics, or a table",
        (
            _NAME,
            Argument("--table", "this one, as CSV; default: OpenMetrics of the last half second", "TABLE", _tables),
            Argument("--out", "to this file, a table by its ending as CSV or Parquet", "FILE"),
        ),
    ),
    Verb("profile", "tell what each rank did since it was started: computing, MPI, the top operations", (_NAME,)),
    Verb("dashboard", "show every rank of a cluster, live", (_NAME,)),
    Verb(
        "report",
        "write the dashboard as one file, which opens without a server and after the cluster's end",
        (Argument("file", "the file, as report.html; one that is there is replaced", "FILE", required=True), _NAME),
    ),
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
