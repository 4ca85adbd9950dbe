"""What the ranks of the collectives bench do: each operation of MPI for buffers and for pickled objects.

Buffers go by the plain communicator and by the one that calls and cells are given, both of the same handle.
Point to point is between ranks 0 and 1 while the others sleep. An iteration begins with a barrier and counts as long
as it takes the slowest rank.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from mpi4py import MPI

from workbench.bench import buffers as buffer_kinds
from workbench.bench.report import alternate
from workbench.extension import Communicator
from workbench.mpi.call_state import CallState
from workbench.mpi.context import everyone
from workbench.rank.world import wait

# Iterations in a measurement of a latency, simultaneous messages in a measurement of a bandwidth.
_TRIPS, _WINDOW = 20, 16
# Bytes up to which an Allreduce is measured as a latency: a single one does not resolve a microsecond.
_SMALL = 1024
# Iterations at least, of an Allreduce, of which a few per cent count, and of others; and at most.
_LEAST_ALLREDUCE, _LEAST, _MOST = 40, 5, 500
# Seconds that sleeping ranks wait for the two that are measured.
_PATIENCE = 300.0

Call = Callable[[MPI.Intracomm], Any]
"""One iteration by a communicator; returns what was received."""
Prepared = tuple[Call, Call, np.ndarray, int]
Buffer = Callable[[np.ndarray], Any]
"""Returns the buffer of an array that MPI gets."""


def measure(sizes: list[int], seconds: float, buffers: str) -> list[dict[str, Any]]:
    """Measure all operations at all sizes. Runs on every rank.

    Parameters
    ----------
    sizes
        Of one message, or of what one rank gives to a collective (to each other rank in an all-to-all), in bytes.
    seconds
        About how long to measure each operation at each size.
    buffers
        Kind of the buffers, one of `workbench.bench.buffers.WRITABLE`.

    Returns
    -------
    rows : list of dict
        ``operation``, ``nbytes``, and the median time in µs and nbytes over time in GB/s: of the buffers by their kind,
        of ``ours``, which are the buffers by our communicator, and of ``pickle``; on rank 0.
    """
    world = everyone().Dup()
    two = world.Create_group(world.Get_group().Incl([0, 1])) if world.rank < 2 else None
    rows = []
    for name, prepare in OPERATIONS.items():
        for nbytes in sizes:
            count = max(1, nbytes // 8)
            if prepare not in _BETWEEN_TWO:
                rows.append(_row(name, prepare, world, count, seconds, buffers=buffers))
            elif two is not None:
                rows.append(_row(name, prepare, two, count, seconds, buffers=buffers))
        # The ranks that have nothing to do must not take the cores of those that have.
        wait(world.Ibarrier(), time.monotonic() + _PATIENCE, f"the ranks that measure {name}")
    return rows


def _row(
    name: str, prepare: Prepare, comm: MPI.Intracomm, count: int, seconds: float, *, buffers: str
) -> dict[str, Any]:
    x = np.arange(count, dtype=float) + comm.rank
    arrays, objects, expected, divisor = prepare(comm, x, buffer_kinds.KINDS[buffers])
    ours = Communicator(comm, CallState())
    # Of the same arrays, by either communicator: where memory lies makes more of a difference than what is measured.
    calls: dict[str, Callable[[], Any]] = {
        buffers: lambda: arrays(comm), "ours": lambda: arrays(ours), "pickle": lambda: objects(comm),
    }  # fmt: skip
    for kind, call in calls.items():
        if not np.array_equal(call(), expected):
            raise ValueError(f"{name} of {kind} delivered something else than was sent at {x.nbytes} bytes")
    number = iterations(comm, calls, seconds, _LEAST_ALLREDUCE if prepare is _allreduce else _LEAST)
    # Objects in separate rounds: after objects the caches have other contents than after arrays.
    times = medians(comm, {kind: calls[kind] for kind in (buffers, "ours")}, number, divisor)
    times |= medians(comm, {"pickle": calls["pickle"]}, number, divisor)
    row: dict[str, Any] = {"operation": name, "nbytes": x.nbytes}
    row |= {f"{kind}_us": median * 1e6 for kind, median in times.items()}
    return row | {f"{kind}_gb_s": x.nbytes / median / 1e9 for kind, median in times.items()}


def iterations(comm: MPI.Intracomm, calls: Mapping[str, Callable[[], Any]], seconds: float, least: int) -> int:
    """Return how many calls of each kind take about so long together, and at least so many."""
    comm.Barrier()
    begin = time.perf_counter()
    for call in calls.values():
        comm.Barrier()
        call()
    took = time.perf_counter() - begin
    return int(comm.bcast(min(_MOST, max(least, int(seconds / took)))))


def medians(comm: MPI.Intracomm, calls: Mapping[str, Callable[[], Any]], number: int, divisor: int) -> dict[str, float]:
    """Return the median time in seconds of each kind of call, which take turns, on the slowest rank of each turn."""
    times: dict[str, list[float]] = {kind: [] for kind in calls}
    for turn, kind in alternate(list(calls), number):
        comm.Barrier()
        begin = time.perf_counter()
        calls[kind]()
        took = time.perf_counter() - begin
        if turn:
            times[kind].append(took / divisor)
    slowest = np.empty(number)
    found = {}
    for kind, measured in times.items():
        comm.Allreduce(np.array(measured), slowest, MPI.MAX)
        found[kind] = statistics.median(slowest.tolist())
    return found


# Each operation by a function that returns an iteration of arrays and one of pickled objects, what they have to return,
# and by what their time is divided.


def _latency(comm: MPI.Intracomm, x: np.ndarray, buffer: Buffer) -> Prepared:
    """Ping-pong: half of a round trip."""
    other, received = 1 - comm.rank, np.empty_like(x)
    sent, into = buffer(x), buffer(received)

    def arrays(comm: MPI.Intracomm) -> np.ndarray:
        for _ in range(_TRIPS):
            if comm.rank == 0:
                comm.Send(sent, other)
            comm.Recv(into, other)
            if comm.rank == 1:
                comm.Send(sent, other)
        return received

    def objects(comm: MPI.Intracomm) -> Any:
        got = None
        for _ in range(_TRIPS):
            if comm.rank == 0:
                comm.send(x, other)
            got = comm.recv(source=other)
            if comm.rank == 1:
                comm.send(x, other)
        return got

    return arrays, objects, x - comm.rank + other, 2 * _TRIPS


def _bandwidth(comm: MPI.Intracomm, x: np.ndarray, buffer: Buffer) -> Prepared:
    """Many simultaneous messages one way, and one back when all have arrived: time for one."""
    received, window = np.empty_like(x), range(_WINDOW)
    sent, into = buffer(x), buffer(received)

    def arrays(comm: MPI.Intracomm) -> np.ndarray:
        if comm.rank == 0:
            MPI.Request.Waitall([comm.Isend(sent, 1) for _ in window])
            comm.recv(source=1)
            return x
        MPI.Request.Waitall([comm.Irecv(into, 0) for _ in window])
        comm.send(None, 0)
        return received

    def objects(comm: MPI.Intracomm) -> Any:
        if comm.rank == 0:
            MPI.Request.waitall([comm.isend(x, 1) for _ in window])
            comm.recv(source=1)
            return x
        got = [comm.recv(source=0) for _ in window]
        comm.send(None, 0)
        return got[-1]

    return arrays, objects, x - comm.rank, _WINDOW


def _bcast(comm: MPI.Intracomm, x: np.ndarray, buffer: Buffer) -> Prepared:
    received = x.copy()
    into = buffer(received)

    def arrays(comm: MPI.Intracomm) -> np.ndarray:
        comm.Bcast(into)
        return received

    return arrays, lambda comm: comm.bcast(x), x - comm.rank, 1


def _allreduce(comm: MPI.Intracomm, x: np.ndarray, buffer: Buffer) -> Prepared:
    received, trips = np.empty_like(x), _TRIPS if x.nbytes <= _SMALL else 1
    sent, into = buffer(x), buffer(received)

    def arrays(comm: MPI.Intracomm) -> np.ndarray:
        for _ in range(trips):
            comm.Allreduce(sent, into)
        return received

    def objects(comm: MPI.Intracomm) -> Any:
        got = None
        for _ in range(trips):
            got = comm.allreduce(x)
        return got

    expected = sum(x - comm.rank + rank for rank in range(comm.size))
    return arrays, objects, np.asarray(expected), trips


def _allgather(comm: MPI.Intracomm, x: np.ndarray, buffer: Buffer) -> Prepared:
    received = np.empty((comm.size, x.size))
    sent, into = buffer(x), buffer(received)

    def arrays(comm: MPI.Intracomm) -> np.ndarray:
        comm.Allgather(sent, into)
        return received

    return arrays, lambda comm: comm.allgather(x), _of_all(comm, x), 1


def _alltoall(comm: MPI.Intracomm, x: np.ndarray, buffer: Buffer) -> Prepared:
    copies = np.tile(x, (comm.size, 1))
    received, pieces = np.empty_like(copies), list(copies)
    sent, into = buffer(copies), buffer(received)

    def arrays(comm: MPI.Intracomm) -> np.ndarray:
        comm.Alltoall(sent, into)
        return received

    return arrays, lambda comm: comm.alltoall(pieces), _of_all(comm, x), 1


def _of_all(comm: MPI.Intracomm, x: np.ndarray) -> np.ndarray:
    return (x - comm.rank) + np.arange(comm.size)[:, np.newaxis]


Prepare = Callable[[MPI.Intracomm, np.ndarray, Buffer], Prepared]

OPERATIONS: dict[str, Prepare] = {
    "latency": _latency,
    "bandwidth": _bandwidth,
    "Bcast": _bcast,
    "Allreduce": _allreduce,
    "Allgather": _allgather,
    "Alltoall": _alltoall,
}
"""What is measured, in the order of the table."""
_BETWEEN_TWO = (_latency, _bandwidth)
