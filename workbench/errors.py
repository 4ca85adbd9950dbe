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
     │    └── SchedulerSilent                     the scheduler does not answer
     ├── StartError            (RuntimeError)     a cluster failed while it was starting
     │    └── StartTimeout     (TimeoutError)     ... or was not ready in time
     ├── HeadUnreachable       (ConnectionError)  the head does not answer from here
     ├── RankLost              (RuntimeError)     what was asked needs a rank that is gone
     └── CollectiveFailed      (RuntimeError)     a call on all ranks was refused, or broke off
          └── CollectiveTimeout (TimeoutError)    ... or was not done in time

Every message says what was given, what is allowed and what to do. Each class derives from the builtin
that a caller would catch.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class WorkbenchError(Exception):
    """Base of all errors of the workbench."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Dask has errors pickled by tblib, which by itself cannot make one that derives from two builtins.
        return type(self), self.args


class InvalidRequest(WorkbenchError, ValueError):
    """The request itself cannot be honoured; nothing was started or changed."""


class ClusterExists(InvalidRequest):
    """There is a cluster of that name already."""


class PlacementError(InvalidRequest):
    """The data cannot be placed one block per rank."""


class ClusterNotFound(WorkbenchError, LookupError):
    """No cluster of that name is known, or it has ended."""

    def __str__(self) -> str:
        # LookupError's family may quote its argument (KeyError does): show the sentence as it is.
        return str(self.args[0]) if self.args else ""


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


class SchedulerSilent(LaunchError):
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
    close = difflib.get_close_matches(str(given), allowed, n=1)
    return f"did you mean {close[0]!r}? (allowed: {listed})" if close else f"allowed: {listed}"
