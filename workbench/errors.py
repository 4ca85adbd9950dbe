"""What can go wrong, as exceptions.

::

    WorkbenchError
     ├── InvalidRequest        (ValueError)       the user asked for something that cannot be
     │    ├── ClusterExists                       a second cluster of the same name
     │    └── PlacementError                      data that cannot be placed block by rank
     ├── ClusterNotFound       (LookupError)      no cluster of that name, or it is gone
     ├── RecordError           (OSError)          a record that is corrupt, foreign or readable by others
     ├── LaunchError           (RuntimeError)     a world cannot be started here
     │    ├── MPINotFound                         no mpiexec, or no MPI library for mpi4py
     │    ├── MPIMismatch                         mpiexec and mpi4py are of different MPIs
     │    ├── JobRejected                         the scheduler does not take the job
     │    └── SchedulerTimeout                    the scheduler does not answer
     ├── StartError            (RuntimeError)     a cluster failed while it was starting
     │    └── StartTimeout     (TimeoutError)     ... or was not ready in time
     ├── HeadUnreachable       (ConnectionError)  the head does not answer from here
     ├── RankLost              (RuntimeError)     what was asked needs a rank that is gone
     └── CollectiveFailed      (RuntimeError)     a call on all ranks was refused, or broke off
          └── CollectiveTimeout (TimeoutError)    ... or was not done in time

Every error says what was given, what is allowed and what to do, in fields that `str` words for a notebook and
`WorkbenchError.words` for other places. Each class derives from the builtin that a caller would catch.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from workbench import hints
from workbench.hints import NOTEBOOK, Hint

_FIELDS = ("option", "given", "allowed", "hint", "log")

Error = TypeVar("Error", bound="WorkbenchError")


class WorkbenchError(Exception):
    """Base of all errors of the workbench.

    Parameters
    ----------
    message
        What is wrong, in words; empty: that `given` is not allowed for `option`.
    more
        More words: Dask gives those of an error that is too long to be sent, cut off, behind words of its own.
    option
        The option that it is about, as ``ranks_per_node``, or the setting, as ``workbench.start-timeout``.
    given
        What was given for it; kept as it can be shown.
    allowed
        What can be given, in words or as a list of all values.
    hint
        What to do.
    log
        The end of the log that tells why.
    """

    def __init__(
        self,
        message: str = "",
        *more: str,
        option: str = "",
        given: object = None,
        allowed: str | Iterable[str] = (),
        hint: Hint = (),
        log: str = "",
    ) -> None:
        self.option, self.log = option, log
        self.given = given if isinstance(given, str | int | None) else repr(given)
        self.allowed = allowed if isinstance(allowed, str) else tuple(allowed)
        self.hint = hints.parts(hint)
        if option and not message:
            message = f"{named(option)} {given!r} is not valid. {_valid_values(given, self.allowed)}."
        super().__init__(": ".join([message, *more]))

    @property
    def kind(self) -> str:
        """The name of its class."""
        return type(self).__name__

    @property
    def message(self) -> str:
        """What is wrong, without what to do."""
        return str(self.args[0]) if self.args else ""

    def words(self, place: str) -> str:
        """Return what is wrong and what to do there: in `hints.NOTEBOOK`, `hints.TERMINAL` or `hints.PANEL`."""
        return f"{self.message} {hints.words(self.hint, place)}".strip()

    def text(self, place: str) -> str:
        """Return `words`, and below them the end of the log."""
        return f"{self.words(place)}\n{self.log}" if self.log else self.words(place)

    def __str__(self) -> str:
        return self.text(NOTEBOOK)

    def retold(self, kind: type[Error], message: str, **changes: Any) -> Error:
        """Return an error of another class or with other words, and with the same fields but for `changes`."""
        return kind(message, **{name: getattr(self, name) for name in _FIELDS} | changes)

    def fields(self) -> dict[str, Any]:
        """Return it as plain values, of which `from_fields` makes it again."""
        told = {name: getattr(self, name) for name in ("kind", "message", *_FIELDS)}
        return told | {"hint": hints.to_json(self.hint)}

    def __reduce__(self) -> tuple[Any, ...]:
        # Dask has errors pickled by tblib, which by itself cannot make one that derives from two builtins.
        return type(self), self.args, {name: getattr(self, name) for name in _FIELDS}


class InvalidRequest(WorkbenchError, ValueError):
    """The request itself cannot be honoured; nothing was started or changed."""


class ClusterExists(InvalidRequest):
    """There is a cluster of that name already."""


class PlacementError(InvalidRequest):
    """The data cannot be placed one block per rank."""


class ClusterNotFound(WorkbenchError, LookupError):
    """No cluster of that name is known, or it has ended."""


class RecordError(WorkbenchError, OSError):
    """A cluster record is corrupt, belongs to somebody else or is open to others."""


class LaunchError(WorkbenchError, RuntimeError):
    """An MPI world cannot be started with what is installed here."""


class MPINotFound(LaunchError):
    """There is no MPI library for mpi4py, or no ``mpiexec`` that belongs to it."""


class MPIMismatch(LaunchError):
    """``mpiexec`` and the library that mpi4py loads belong to different MPIs."""


class JobRejected(LaunchError):
    """The scheduler does not take the job; nothing is left of it."""


class SchedulerTimeout(LaunchError):
    """The scheduler does not answer in time."""


class StartError(WorkbenchError, RuntimeError):
    """The cluster failed while it was starting; everything of it has been removed."""


class StartTimeout(StartError, TimeoutError):
    """The cluster was not ready before the deadline; everything of it has been removed."""


class HeadUnreachable(WorkbenchError, ConnectionError):
    """The head of a cluster does not answer from this host."""


class RankLost(WorkbenchError, RuntimeError):
    """A task or a call on all ranks needs a rank that is gone."""


class CollectiveFailed(WorkbenchError, RuntimeError):
    """A call on all ranks of a world was refused, or broke off."""


class CollectiveTimeout(CollectiveFailed, TimeoutError):
    """A call on all ranks of a world was not done before its deadline."""


def from_fields(fields: Mapping[str, Any]) -> WorkbenchError:
    """Return the error of which another process has told the `WorkbenchError.fields`."""
    kind = globals().get(str(fields.get("kind")))
    made = kind if isinstance(kind, type) and issubclass(kind, WorkbenchError) else WorkbenchError
    told = {name: fields[name] for name in _FIELDS if name in fields}
    return made(fields["message"], **told | {"hint": hints.from_json(fields.get("hint", ()))})


def worded(error: BaseException, place: str) -> str:
    """Return the text of an error, of ours or not, for a place."""
    return error.text(place) if isinstance(error, WorkbenchError) else str(error)


def named(option: str) -> str:
    """Return how a message calls an option or, with a dot in it, a setting."""
    return f"the setting {option}" if "." in option else option.replace("_", "-")


def _valid_values(given: object, allowed: str | tuple[str, ...]) -> str:
    if isinstance(allowed, str):
        return f"Choose {allowed}"
    values = did_you_mean(given, allowed)
    return values[0].upper() + values[1:]


def closest(given: object, allowed: Iterable[str]) -> str | None:
    """Return what is allowed and most like what was given, if anything is like it."""
    return next(iter(difflib.get_close_matches(str(given), list(allowed), n=1)), None)


def did_you_mean(given: object, allowed: Iterable[str]) -> str:
    """Word the allowed values, the closest to what was given first.

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
