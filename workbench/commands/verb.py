"""What a verb is: its words and options, what it does, and how a place shows what comes of that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from workbench.commands import actions
from workbench.deploy.record import Record
from workbench.hints import NOTEBOOK, TERMINAL
from workbench.launch.options import ClusterOption, JobOptions, options

if TYPE_CHECKING:
    from workbench.cluster import MPICluster


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
    def of(cls, option: ClusterOption, values: Callable[[], Iterable[str]] | None = None) -> Argument:
        """Return an option of a cluster as it is typed; `values` are those that only this host knows."""
        return cls(
            option.typed,
            option.help,
            option.metavar,
            values or ((lambda: option.choices) if option.choices else tuple),
            aliases=option.aliases,
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
class Answer:
    """What comes of a verb, for each place that may show it."""

    text: str = ""
    """For people."""
    value: Mapping[str, Any] = field(default_factory=dict)
    """For programs, in JSON."""
    html: str | None = None
    """For a notebook, in the place of the text."""
    rich: Any = None
    """An object that a notebook displays by itself, in the place of the text."""
    failure: str | None = None
    """Why the verb has failed, worded for the place; empty: the text has it; None: the verb has not failed."""


class Place:
    """Where a verb is typed: what the verb needs of a notebook or of a terminal."""

    name: ClassVar[str]
    """`hints.NOTEBOOK` or `hints.TERMINAL`."""
    json: bool = False
    """Whether a program reads the answer."""

    @property
    def cluster(self) -> MPICluster | None:
        """The cluster in use, if there is one and it is connected."""
        return None

    @property
    def record(self) -> Record | None:
        """The record of the cluster in use."""
        cluster = self.cluster
        return None if cluster is None else cluster.record

    def choose(self, name: str | None) -> Record:
        """Return the record of the cluster that a verb is about; as of `actions.choose`."""
        return actions.choose(name, self.record)

    def show(self, answer: Answer) -> None:
        """Show what has come of a verb, or a part of it."""
        raise NotImplementedError

    def use(self, cluster: MPICluster) -> Answer | None:
        """Use a cluster that was started or attached to; return what is still to be shown of it."""
        raise NotImplementedError

    def dashboard(self, record: Record) -> Answer | None:
        """Show the dashboard of a cluster; return what is still to be shown."""
        raise NotImplementedError

    def release(self) -> None:
        """Release the cluster in use; the cluster goes on."""


@dataclass(frozen=True)
class Verb:
    """One subcommand."""

    name: str
    """What is typed."""
    help: str
    """What it does, in a sentence."""
    run: Callable[..., Any]
    """Does it: takes the `Place`, then the arguments by their names as they were typed."""
    show: Callable[[Any, str], Answer | None] = lambda result, _: result
    """Makes the answer of what `run` returned, for a place by its name; None: nothing is to be shown any more."""
    arguments: tuple[Argument, ...] = ()
    """Words in their order, then options."""
    places: tuple[str, ...] = (NOTEBOOK, TERMINAL)
    """Where it can be typed."""
    going: str = ""
    """How the panel calls it while it runs, if the panel has it for a cluster that runs."""

    def at(self, place: str) -> tuple[Argument, ...]:
        """Return the arguments that it has in a place: in a terminal everything can answer in JSON."""
        return (*self.arguments, *([_JSON] if place == TERMINAL else []), _VERBOSE)

    def usage(self, place: str) -> str:
        """Return the line of usage."""
        return " ".join([place, self.name, *(argument.usage for argument in self.at(place))])


_JSON = Argument("--json", "print one JSON object")
_VERBOSE = Argument("--verbose", "log commands of schedulers and processes, here and in what is started")
