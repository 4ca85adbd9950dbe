"""Subcommands with their arguments, the answers of subcommands and checks, and the places where users type them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from workbench.commands import actions
from workbench.deploy.record import Record
from workbench.errors import InvalidRequest, WorkbenchError
from workbench.hints import NOTEBOOK, TERMINAL, Hint
from workbench.launch.options import GROUPS, WITHOUT_SCHEDULER, ClusterOption, JobOptions, options

if TYPE_CHECKING:
    from workbench.cluster import MPICluster

OUTPUT = "output"
"""The group of the options that change what is printed."""
ARGUMENT_GROUPS = (*GROUPS, OUTPUT)
"""The groups of arguments, in their order in help; one without a group comes before them."""
SUBCOMMAND_GROUPS = ("start and stop", "look at a cluster", "run", "set up")
"""The groups of subcommands, in their order in help."""
# A subcommand with more options has a usage without their names.
_NAMED_OPTIONS = 6

_T = TypeVar("_T", "Argument", "Subcommand", ClusterOption)


@dataclass(frozen=True)
class Argument:
    """One positional argument or option of a subcommand."""

    name: str
    """``--option``, or the name of a positional argument in lower case."""
    help: str
    """One line for the user."""
    metavar: str | None = None
    """Placeholder of the value in help; None: an option without a value."""
    values: Callable[[], Iterable[str]] = tuple
    """Values that completion offers."""
    required: bool = False
    """Whether a positional argument is required."""
    aliases: tuple[str, ...] = ()
    """Other names of an option."""
    many: bool = False
    """Whether an option may be given several times, each with a value."""
    number: bool = False
    """Whether the value is a whole number."""
    batch_only: bool = False
    """Whether it is for batch schedulers only."""
    group: str = ""
    """One of `ARGUMENT_GROUPS`, if it belongs to one."""

    @classmethod
    def of(cls, option: ClusterOption, values: Callable[[], Iterable[str]] | None = None) -> Argument:
        """Return the argument of an option of a cluster; `values` returns values that only this host knows."""
        return cls(
            option.typed,
            option.help,
            option.metavar,
            values or ((lambda: option.choices) if option.choices else tuple),
            aliases=option.aliases,
            many=option.many,
            number=option.kinds == ("int",),
            batch_only=option.name in {each.name for each in options(JobOptions)} - WITHOUT_SCHEDULER | {"resubmit"},
            group=option.group,
        )

    @property
    def is_option(self) -> bool:
        """Whether it is an option rather than a positional argument."""
        return self.name.startswith("-")

    @property
    def usage(self) -> str:
        """Its part of the line of usage."""
        text = " ".join(filter(None, (self.name if self.is_option else "", self.metavar)))
        return text if self.required else f"[{text}]"


@dataclass(frozen=True)
class Answer:
    """The result of a subcommand, for each place that may show it."""

    text: str = ""
    """For people."""
    value: Mapping[str, Any] = field(default_factory=dict)
    """For programs, in JSON."""
    html: str | None = None
    """For a notebook, instead of the text."""
    rich: Any = None
    """An object that a notebook displays instead of the text."""
    failure: str | None = None
    """Why the subcommand has failed, worded for the place; empty: the text has it; None: no failure."""


class Place:
    """Where a subcommand is typed: the operations of a notebook or of a terminal."""

    name: ClassVar[str]
    """`hints.NOTEBOOK` or `hints.TERMINAL`."""
    json: bool = False
    """Whether a program reads the answer."""

    @property
    def cluster(self) -> MPICluster | None:
        """The cluster in use, if any, and if it is connected."""
        return None

    @property
    def record(self) -> Record | None:
        """The record of the cluster in use."""
        cluster = self.cluster
        return None if cluster is None else cluster.record

    def variables(self) -> Mapping[str, Any]:
        """Return the variables of the user."""
        return {}

    def choose(self, name: str | None) -> Record:
        """Return the record of the cluster that a subcommand applies to; as of `actions.choose`."""
        return actions.choose(name, self.record)

    def show(self, answer: Answer) -> None:
        """Show the answer of a subcommand, or a part of it."""
        raise NotImplementedError

    def use(self, cluster: MPICluster) -> Answer | None:
        """Use a cluster that was started or attached to; return what remains to be shown."""
        raise NotImplementedError

    def release(self) -> None:
        """Disconnect from the cluster in use."""


@dataclass(frozen=True)
class Subcommand:
    """One subcommand."""

    name: str
    """The name that is typed."""
    help: str
    """One line for the user."""
    group: str
    """One of `SUBCOMMAND_GROUPS`."""
    run: Callable[..., Any]
    """Function of the `Place` and the arguments, by their names and as they were typed; see also `parses`."""
    show: Callable[[Any, str], Answer | None] = lambda result, _: result
    """Function from the result of `run` and the name of a place to the answer; None: nothing remains to be shown."""
    arguments: tuple[Argument, ...] = ()
    """Positional arguments in their order, then options."""
    places: tuple[str, ...] = (NOTEBOOK, TERMINAL)
    """Where it can be typed."""
    progress_label: str = ""
    """State that the panel shows while the subcommand runs, if the panel has the subcommand for a running cluster."""
    parses: bool = False
    """Whether `run` takes the words after the name instead, and returns the exit code; for a terminal only."""

    def __post_init__(self) -> None:
        if self.group not in SUBCOMMAND_GROUPS:
            raise InvalidRequest(option="group", given=self.group, allowed=SUBCOMMAND_GROUPS)

    def at(self, place: str) -> tuple[Argument, ...]:
        """Return the arguments in a place; in a terminal every subcommand can answer in JSON."""
        return (*self.arguments, *([_JSON] if place == TERMINAL else []), _VERBOSE)

    def usage(self, place: str) -> str:
        """Return the line of usage."""
        options = [argument for argument in self.at(place) if argument.is_option]
        words = [argument.usage for argument in self.at(place) if argument not in options]
        named = [option.usage for option in options] if len(options) <= _NAMED_OPTIONS else ["[options]"]
        return " ".join([place, self.name, *words, *named])


def grouped(members: Iterable[_T], groups: Iterable[str]) -> list[tuple[str, list[_T]]]:
    """Return the groups that have members, in the order of `groups`, with these members."""
    members = list(members)
    return [(group, named) for group in groups if (named := [member for member in members if member.group == group])]


_JSON = Argument("--json", "print one JSON object", group=OUTPUT)
_VERBOSE = Argument("--verbose", "log commands of schedulers and processes, here and in what is started", group=OUTPUT)


@dataclass(frozen=True)
class CheckResult:
    """The result of one check."""

    check: str
    """What was checked."""
    verdict: Literal["ok", "warning", "failed"]
    """``failed``: no cluster will start, or work."""
    detail: str
    """The observation."""
    remedy: Hint = ""
    """What to do; empty if nothing."""


def failure(check: str, error: WorkbenchError | OSError) -> CheckResult:
    """Return the result of a check that an error has ended."""
    if isinstance(error, WorkbenchError):
        return CheckResult(check, "failed", error.message.removesuffix("."), error.hint)
    return CheckResult(check, "failed", str(error))


def skipped(check: str, failed: str) -> CheckResult:
    """Return the result of a check that needs one that has failed."""
    return CheckResult(
        check, "warning", f"not checked, because the check of {failed} failed", f"Repair {failed} first."
    )
