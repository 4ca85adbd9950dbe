"""The parts of a model's data on the ranks of an MPI communicator, and the function of a rank in a fit.

Rank 0 runs the algorithm: it broadcasts each request to the other ranks and reduces the results of the parts. These are
the two halves of an ``MPI_Allreduce``, and rank 0 alone decides about the next step. If each rank decided, different
processors might round differently, and ranks would wait for ever for a rank that ends one iteration earlier.

Ranks load this module and the modules of a task, and load scikit-learn and pandas only where an algorithm needs them.
"""

from __future__ import annotations

import functools
import pickle
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np

from workbench.metrics import report
from workbench.ml.checks import Checks, make
from workbench.ml.engine.parts import ConnectedParts
from workbench.ml.engine.progress import Sender

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm
    from numpy.typing import NDArray


_Report = Callable[[Mapping[str, float]], None]

# The length of a pickled request, at the start of a message.
_LENGTH = struct.Struct("=q")
# Bytes by which a request may exceed the request before, and maximum bytes of a request that has room in a message:
# for more bytes, another broadcast costs little in comparison.
_MORE, _MOST = 1 << 10, 1 << 16


class RankParts:
    """Parts on the ranks of a communicator; for rank 0.

    Parameters
    ----------
    comm
        The communicator.
    part
        The part of this rank.
    report
        Receives each record of `Parts.report`.
    """

    direct = True

    def __init__(self, comm: Intracomm, part: Any, report: _Report) -> None:
        self._comm, self._part, self._requests = comm, part, _Requests(comm)
        self.report = report

    def sum(self, method: str, *args: Any) -> Any:
        """See `workbench.ml.engine.parts.Parts.sum`."""
        return self._ask(_sum, method, args)

    def each(self, method: str, *args: Any) -> list[Any]:
        """See `workbench.ml.engine.parts.Parts.each`."""
        values: list[Any] = self._ask(_gather, method, args)
        return values

    def fold(self, join: Callable[[Any, Any], Any], method: str, *args: Any) -> Any:
        """See `workbench.ml.engine.parts.Parts.fold`."""
        return self._ask(functools.partial(_fold, join=join), method, args)

    def together(self, method: str, *args: Any) -> Any:
        """See `workbench.ml.engine.parts.ConnectedParts.together`."""
        self._requests.send((_together, method, args))
        return _together(self._comm, getattr(self._part, method)(*args), self.report)

    def _ask(self, collect: Callable[..., Any], method: str, args: tuple[Any, ...]) -> Any:
        self._requests.send((collect, method, args))
        return collect(self._comm, getattr(self._part, method)(*args))

    def end(self) -> None:
        """End `serve` on the other ranks."""
        self._requests.send(None)


def serve(comm: Intracomm, part: Any) -> None:
    """Execute the requests of rank 0 until `RankParts.end`; for the other ranks."""
    requests = _Requests(comm)
    while request := requests.receive():
        collect, method, args = request
        collect(comm, getattr(part, method)(*args))


class _Requests:
    """Requests of rank 0 to the other ranks.

    All ranks know the length of the request before. The steps of an algorithm have requests of the same length, so that
    one broadcast with room for such a request is enough. A request that has no room follows in a second broadcast.

    Parameters
    ----------
    comm
        The communicator.
    """

    def __init__(self, comm: Intracomm) -> None:
        self._comm, self._room = comm, _MORE

    def send(self, request: Any) -> None:
        """Send a request; for rank 0."""
        data = _pickled(request)
        has_room = len(data) <= self._room
        message = _LENGTH.pack(len(data)) + (data if has_room else b"").ljust(self._room)
        self._comm.Bcast(np.frombuffer(message, np.uint8))
        if not has_room:
            self._comm.Bcast(np.frombuffer(data, np.uint8))
        self._adapt(len(data))

    def receive(self) -> Any:
        """Return the next request; for the other ranks."""
        message = np.empty(_LENGTH.size + self._room, np.uint8)
        self._comm.Bcast(message)
        (length,) = _LENGTH.unpack_from(message.data)
        data = message[_LENGTH.size :]
        if length > self._room:
            data = np.empty(length, np.uint8)
            self._comm.Bcast(data)
        self._adapt(length)
        return pickle.loads(data.data)  # noqa: S301  (sent by rank 0)

    def _adapt(self, length: int) -> None:
        self._room = _MORE + (length if length <= _MOST else 0)


def _pickled(request: Any) -> bytes:
    try:
        return pickle.dumps(request, pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError):
        # `pickle` refuses functions that are defined in a notebook.
        pickled: bytes = cloudpickle.dumps(request)
        return pickled


def _sum(comm: Intracomm, value: Any) -> Any:
    vector = _pack(value)
    total = np.empty_like(vector) if comm.rank == 0 else None
    comm.Reduce(vector, total)
    return None if total is None else _unpack(total, value)


def _gather(comm: Intracomm, value: Any) -> list[Any] | None:
    return comm.gather(value)


def _fold(comm: Intracomm, value: Any, join: Callable[[Any, Any], Any]) -> Any:
    return comm.reduce(value, op=join)


def _together(comm: Intracomm, function: Callable[..., Any], report: _Report | None = None) -> Any:
    return function(comm, report)


def _pack(value: Any) -> NDArray[np.float64]:
    """Return an array, a number, or a (nested) tuple of these as one vector; integers are exact up to 2**53."""
    if not isinstance(value, tuple):
        return np.ravel(np.asarray(value, dtype=np.float64))
    return np.concatenate([_pack(part) for part in value]) if value else np.empty(0)


def _unpack(vector: NDArray[np.float64], like: Any) -> Any:
    """Return the inverse of `_pack` in the shape of another value; arrays are views of the vector."""
    return _unpack_from(vector, 0, like)[0]


def _unpack_from(vector: NDArray[np.float64], start: int, like: Any) -> tuple[Any, int]:
    if not isinstance(like, tuple):
        shape = np.shape(like)
        end = start + int(np.prod(shape, dtype=int))
        return (vector[start:end].reshape(shape) if shape else float(vector[start])), end
    parts = []
    for part in like:
        value, start = _unpack_from(vector, start, part)
        parts.append(value)
    return tuple(parts), start


@dataclass(frozen=True)
class Task:
    """A fit without its data."""

    algorithm: Callable[[ConnectedParts, Any], Any]
    """Returns the result for the parts and the settings."""
    settings: Any
    part: Callable[..., Any]
    """Returns the part of rows, targets, weights and the number of the first row."""
    checks: Checks
    kept: tuple[NDArray[Any], ...] = ()
    """Empty arrays like those that each part, a `workbench.ml.engine.kept_arrays.Keeps`, keeps on its rank. The fit
    returns the kept arrays as placed Dask arrays, beside the result of the algorithm."""

    def __sizeof__(self) -> int:
        # A call broadcasts arguments above a size, for example the queries of a search.
        from dask.sizeof import sizeof

        settings = vars(self.settings).values() if is_dataclass(self.settings) else (self.settings,)
        nbytes: int = super().__sizeof__() + sum(map(sizeof, settings))
        return nbytes


def on_rank(comm: Intracomm, task: Task, starts: list[int], fit: str, *columns: Any) -> Any:
    """Take part in a fit; return the result on rank 0."""
    part = make(task.part, task.checks, starts[comm.rank], *columns)
    if comm.rank:
        serve(comm, part)
        return None
    sender = Sender(fit, task.checks.estimator, report.tell)
    parts = RankParts(comm, part, sender)
    result = task.algorithm(parts, task.settings)
    if task.kept:
        parts.sum("leave", fit)
    parts.end()
    sender.flush()
    return result
