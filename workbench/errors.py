"""The exceptions of the workbench.

::

    WorkbenchError
     ├── InvalidRequest        (ValueError)       a request that is not valid
     │    ├── ClusterExists                       a second cluster of the same name
     │    └── PlacementError                      data that cannot be placed block by rank
     ├── ClusterNotFound       (LookupError)      no cluster of that name, or it has ended
     ├── CheckpointNotFound    (LookupError)      a folder without a complete checkpoint
     ├── RecordError           (OSError)          a record that is corrupt, or that others own or can read
     ├── LaunchError           (RuntimeError)     a world cannot be started here
     │    ├── MPINotFound                         no mpiexec, or no MPI library for mpi4py
     │    ├── MPIMismatch                         mpiexec and mpi4py are of different MPIs
     │    ├── JobRejected                         the scheduler does not take the job
     │    └── SchedulerTimeout                    the scheduler does not answer
     ├── StartError            (RuntimeError)     a cluster failed while it was starting
     │    └── StartTimeout     (TimeoutError)     ... or was not ready in time
     ├── HeadUnreachable       (ConnectionError)  the head does not answer this host
     │    └── ClusterMoves                        the next job of the cluster has not begun
     ├── RankLost              (RuntimeError)     the operation needs a rank that was lost
     ├── MemoryLimitReached    (MemoryError)      a task was ended as it filled its rank's memory
     └── CollectiveFailed      (RuntimeError)     an SPMD call was refused or failed
          └── CollectiveTimeout (TimeoutError)    ... or missed its deadline

Every error has the given value, the valid values and a hint in fields, which `str` formats for a notebook and
`WorkbenchError.words` for other places. Each class derives from the builtin that a caller would catch.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, TypeVar

from workbench import hints
from workbench.hints import NOTEBOOK, Hint

_FIELDS = ("option", "given", "allowed", "hint", "log", "ranks")

Error = TypeVar("Error", bound="WorkbenchError")


class WorkbenchError(Exception):
    """Base of all errors of the workbench.

    Parameters
    ----------
    message : str, default=""
        What is wrong; empty: `given` is not valid for `option`.
    *more : str
        More text: Dask recreates a long error with a shortened text after the message.
    option : str, default=""
        The option of the error, e.g. ``ranks_per_node``, or its setting, e.g. ``workbench.start-timeout``.
    given : object, default=None
        The given value; stored as text unless it is a string or an integer.
    allowed : str or iterable of str, default=()
        The valid values: a description, or a list of all.
    hint : str or sequence, default=()
        What to do: a sentence, or the parts of a sentence, of which commands and options are worded for each place.
    log : str, default=""
        The end of the log that has the reason.
    ranks : iterable of int, default=()
        The ranks of a world that the error is about, for example those that were lost.
    """

    docs: ClassVar[str] = "troubleshooting#messages"
    """The page and the section of the documentation, as ``page#anchor``."""

    def __init__(
        self,
        message: str = "",
        *more: str,
        option: str = "",
        given: object = None,
        allowed: str | Iterable[str] = (),
        hint: Hint = (),
        log: str = "",
        ranks: Iterable[int] = (),
    ) -> None:
        self.option, self.log, self.ranks = option, log, tuple(ranks)
        self.given = given if isinstance(given, str | int | None) else repr(given)
        self.allowed = allowed if isinstance(allowed, str) else tuple(allowed)
        self.hint = hints.parts(hint)
        if option and not message:
            message = f"{named(option)} {given!r} is not valid."
            valid = valid_values(given, self.allowed)
            self.hint = (f"{valid} ", *self.hint) if self.hint else (valid,)
        super().__init__(": ".join([message, *more]))

    @property
    def kind(self) -> str:
        """Name of the class."""
        return type(self).__name__

    @property
    def message(self) -> str:
        """What is wrong, without the hint."""
        return str(self.args[0]) if self.args else ""

    def words(self, place: str) -> str:
        """Return the message and the hint for a place: `hints.NOTEBOOK`, `hints.TERMINAL` or `hints.PANEL`."""
        return f"{self.message} {hints.words(self.hint, place)}".strip()

    def text(self, place: str) -> str:
        """Return `words`, followed by the end of the log."""
        return f"{self.words(place)}\n{self.log}" if self.log else self.words(place)

    def __str__(self) -> str:
        return self.text(NOTEBOOK)

    def converted(self, kind: type[Error], message: str, **changes: Any) -> Error:
        """Return an error of another class or with another message, and with the same fields except `changes`."""
        return kind(message, **{name: getattr(self, name) for name in _FIELDS} | changes)

    def fields(self) -> dict[str, Any]:
        """Return plain values, from which `from_fields` recreates the error."""
        fields = {name: getattr(self, name) for name in ("kind", "message", *_FIELDS)}
        return fields | {"hint": hints.to_json(self.hint), "docs": self.docs}

    def __reduce__(self) -> tuple[Any, ...]:
        # Dask pickles errors with tblib, which alone cannot recreate an error that derives from two builtins.
        return type(self), self.args, {name: getattr(self, name) for name in _FIELDS}


class InvalidRequest(WorkbenchError, ValueError):
    """The request is not valid; nothing was started or changed."""

    docs = "troubleshooting#options-that-are-not-valid"


class ClusterExists(InvalidRequest):
    """A cluster of that name already exists."""

    docs = "troubleshooting#names-of-clusters"


class PlacementError(InvalidRequest):
    """The data cannot be placed one block per rank."""

    docs = "placement#errors"


class ClusterNotFound(WorkbenchError, LookupError):
    """No cluster of that name is known, or it has ended."""

    docs = "troubleshooting#names-of-clusters"


class CheckpointNotFound(WorkbenchError, LookupError):
    """A folder has no complete checkpoint, or not the version that was named."""

    docs = "checkpoints#errors"


class RecordError(WorkbenchError, OSError):
    """A cluster record is corrupt, belongs to another user or is open to others."""

    docs = "troubleshooting#records"


class LaunchError(WorkbenchError, RuntimeError):
    """An MPI world cannot be started with what is installed here."""

    docs = "troubleshooting#environments-and-mpi"


class MPINotFound(LaunchError):
    """mpi4py finds no MPI library, or the library has no ``mpiexec``."""


class MPIMismatch(LaunchError):
    """``mpiexec`` and the library that mpi4py loads belong to different MPIs."""


class JobRejected(LaunchError):
    """The scheduler has rejected the job."""

    docs = "troubleshooting#schedulers"


class SchedulerTimeout(LaunchError):
    """The scheduler does not answer in time."""

    docs = "troubleshooting#schedulers"


class StartError(WorkbenchError, RuntimeError):
    """The cluster failed during its start; all its parts were removed."""

    docs = "troubleshooting#failed-starts"


class StartTimeout(StartError, TimeoutError):
    """The cluster was not ready before the deadline; all its parts were removed."""


class HeadUnreachable(WorkbenchError, ConnectionError):
    """The head of a cluster does not answer from this host."""

    docs = "troubleshooting#unreachable-heads"


class ClusterMoves(HeadUnreachable):
    """The job of the cluster ends, and its next job continues the cluster; a call waits and is repeated there."""

    docs = "checkpoints#a-cluster-that-outlives-its-job"


class RankLost(WorkbenchError, RuntimeError):
    """A task or an SPMD call needs a rank that was lost."""

    docs = "troubleshooting#lost-ranks-and-worlds"


class MemoryLimitReached(WorkbenchError, MemoryError):
    """A task was ended, because it has filled the memory of its rank, and the system may kill the rank above the limit.

    Notes
    -----
    Python creates an error that is raised in another thread without arguments: the message is `reason` then.
    """

    docs = "troubleshooting#lost-ranks-and-worlds"
    reason: ClassVar[str] = ""
    """The message of the next error."""

    def __init__(self, message: str = "", *more: str, **fields: Any) -> None:
        if not message:
            memory = hints.Option("memory")
            remedy = (
                "Work on smaller parts, for example smaller chunks, or start ranks with more memory (",
                memory,
                ").",
            )
            message, fields = self.reason, {"hint": remedy}
        super().__init__(message, *more, **fields)


class CollectiveFailed(WorkbenchError, RuntimeError):
    """An SPMD call of a world was refused or failed."""

    docs = "troubleshooting#failed-spmd-calls"


class CollectiveTimeout(CollectiveFailed, TimeoutError):
    """An SPMD call of a world missed its deadline."""

    docs = "howto/debug-a-hang"


def from_fields(fields: Mapping[str, Any]) -> WorkbenchError:
    """Return the error from `WorkbenchError.fields`, which another process has sent."""
    kind = globals().get(str(fields.get("kind")))
    cls = kind if isinstance(kind, type) and issubclass(kind, WorkbenchError) else WorkbenchError
    known = {name: fields[name] for name in _FIELDS if name in fields}
    return cls(fields["message"], **known | {"hint": hints.from_json(fields.get("hint", ()))})


def worded(error: BaseException, place: str) -> str:
    """Return the text of any error for a place."""
    return error.text(place) if isinstance(error, WorkbenchError) else str(error)


def named(option: str) -> str:
    """Return the name of an option in messages, or of a setting if the name contains a dot."""
    return f"the setting {option}" if "." in option else option.replace("_", "-")


def valid_values(given: object, allowed: str | Iterable[str]) -> str:
    """Return a sentence with the valid values: a description, or a list."""
    if isinstance(allowed, str):
        return f"Choose {allowed}."
    values = did_you_mean(given, allowed)
    return f"{values[0].upper()}{values[1:]}."


def closest(given: object, allowed: Iterable[str]) -> str | None:
    """Return the only valid value that begins with the given one, otherwise the most similar one, or None."""
    # The hyphens of options would make any two of them similar.
    word, names = str(given).lstrip("-"), {name.lstrip("-"): name for name in allowed}
    begun = [name for name in names if word and name.startswith(word)]
    close = begun if len(begun) == 1 else difflib.get_close_matches(word, names, n=1)
    return names[close[0]] if close else None


def did_you_mean(given: object, allowed: Iterable[str]) -> str:
    """Return the text of the valid values, with the one closest to the given value first.

    Examples
    --------
    >>> did_you_mean("strat", ["start", "stop"])
    "did you mean 'start'? (allowed: start, stop)"
    >>> did_you_mean("xyz", ["start", "stop"])
    'allowed: start, stop'
    """
    allowed = list(allowed)
    listed = ", ".join(allowed) or "nothing"
    close = closest(given, allowed)
    return f"did you mean {close!r}? (allowed: {listed})" if close else f"allowed: {listed}"
