"""Cancelable collective operations and reductions on pickled objects."""

# ruff: noqa: D102  (names and documentation are mpi4py's)
from __future__ import annotations

# ruff: noqa: D102, N802  (names and documentation are mpi4py's)
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from mpi4py import MPI
from mpi4py.MPI import BYTE, Comm, Topocomm, pickle  # global names are faster than attributes of MPI

from workbench.mpi.collectives import NeighborCollectives
from workbench.mpi.derived import DerivedCommunicators
from workbench.mpi.operation import InterruptibleComm, operation
from workbench.mpi.polling import keep_alive
from workbench.mpi.request import unpickled
from workbench.mpi.traffic import NOTHING, to_each_other, to_later, to_neighbors

_Counts = np.ndarray[Any, np.dtype[np.int64]]


class ObjectCollectives(InterruptibleComm):
    """Blocking collective operations on pickled objects, which send first the lengths and then the bytes."""

    @operation
    def barrier(self) -> None:
        self._run(Comm.Ibarrier)

    @operation
    def bcast(self, obj: Any, root: int = 0) -> Any:
        data = pickle.dumps(obj) if self.rank == root else b""
        received = self._bcast(data, root)
        self._count_sent("bcast", lambda counter: len(data) if counter.rank == root else NOTHING)
        return obj if self.rank == root else pickle.loads(received)

    def _bcast(self, data: bytes, root: int) -> bytes | bytearray:
        size = _counts(1, len(data))
        self._run(Comm.Ibcast, size, root)
        buffer = data if self.rank == root else bytearray(int(size[0]))
        self._run(Comm.Ibcast, [buffer, BYTE], root)
        return buffer

    @operation
    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        data = pickle.dumps(sendobj)
        counts = _counts(self.size) if self.rank == root else None
        self._run(Comm.Igather, _counts(1, len(data)), counts, root)
        if counts is None:
            self._run(Comm.Igatherv, [data, BYTE], None, root)
            self._count_sent("gather", lambda _: [(root, len(data))])
            return None
        parts = _Parts(counts)
        self._run(Comm.Igatherv, [data, BYTE], parts.message, root)
        return parts.objects()

    @operation
    def scatter(self, sendobj: Sequence[Any] | None, root: int = 0) -> Any:
        size, outgoing, counts = _counts(1), None, None
        if self.rank == root:
            data = _pickled(sendobj, self.size)
            counts = np.array([len(each) for each in data], dtype=np.int64)
            outgoing = _Parts(counts, b"".join(data)).message
        self._run(Comm.Iscatter, counts, size, root)
        buffer = bytearray(int(size[0]))
        self._run(Comm.Iscatterv, outgoing, [buffer, BYTE], root)
        self._count_sent(
            "scatter", lambda counter: NOTHING if counts is None else to_each_other(counter, counts.tolist())
        )
        return pickle.loads(buffer)

    @operation
    def allgather(self, sendobj: Any) -> list[Any]:
        data = pickle.dumps(sendobj)
        counts = _counts(self.size)
        self._run(Comm.Iallgather, _counts(1, len(data)), counts)
        parts = _Parts(counts)
        self._run(Comm.Iallgatherv, [data, BYTE], parts.message)
        self._count_sent("allgather", lambda _: len(data))
        return parts.objects()

    @operation
    def alltoall(self, sendobj: Sequence[Any]) -> list[Any]:
        data = _pickled(sendobj, self.size)
        sizes, counts = np.array([len(each) for each in data], dtype=np.int64), _counts(self.size)
        self._run(Comm.Ialltoall, sizes, counts)
        parts = _Parts(counts)
        self._run(Comm.Ialltoallv, _Parts(sizes, b"".join(data)).message, parts.message)
        self._count_sent("alltoall", lambda counter: to_each_other(counter, sizes.tolist()))
        return parts.objects()


class ObjectNeighborCollectives(NeighborCollectives):
    """Blocking collective operations of neighbors in a topology, on pickled objects."""

    @operation
    def neighbor_allgather(self, sendobj: Any) -> list[Any]:
        data = pickle.dumps(sendobj)
        counts = _counts(self.indegree)
        self._run(Topocomm.Ineighbor_allgather, _counts(1, len(data)), counts)
        parts = _Parts(counts)
        self._run(Topocomm.Ineighbor_allgatherv, [data, BYTE], parts.message)
        self._count_sent(
            "neighbor_allgather", lambda counter: to_neighbors(counter, [len(data)] * len(counter.neighbors))
        )
        return parts.objects()

    @operation
    def neighbor_alltoall(self, sendobj: Sequence[Any]) -> list[Any]:
        data = _pickled(sendobj, self.outdegree)
        sizes, counts = np.array([len(each) for each in data], dtype=np.int64), _counts(self.indegree)
        self._exchange("Neighbor_alltoall", sizes, counts)
        parts = _Parts(counts)
        self._exchange("Neighbor_alltoallv", _Parts(sizes, b"".join(data)).message, parts.message)
        self._count_sent("neighbor_alltoall", lambda counter: to_neighbors(counter, sizes.tolist()))
        return parts.objects()


class _Parts:
    """Consecutive pickled objects in one buffer."""

    def __init__(self, counts: _Counts, buffer: bytes | None = None) -> None:
        self._ends = list(accumulate(counts.tolist(), initial=0))
        self._buffer = bytearray(self._ends[-1]) if buffer is None else buffer
        self.message = [self._buffer, (counts, self._ends[:-1]), BYTE]

    def objects(self) -> list[Any]:
        whole = memoryview(self._buffer)
        bounds = zip(self._ends, self._ends[1:], strict=False)
        # An empty part means that the neighbor does not exist.
        return [pickle.loads(whole[begin:end]) if end > begin else None for begin, end in bounds]


def _counts(number: int, value: int = 0) -> _Counts:
    return np.full(number, value, dtype=np.int64)


def _pickled(objects: Sequence[Any] | None, number: int) -> list[bytes]:
    items = [None] * number if objects is None else list(objects)
    if len(items) != number:
        raise ValueError(f"expecting {number} items, got {len(items)}")
    return [pickle.dumps(item) for item in items]


_Op = Callable[[Any, Any], Any]


class ObjectReductions(ObjectCollectives, DerivedCommunicators):
    """Blocking reductions of pickled objects, with messages on a private communicator."""

    _private = MPI.COMM_NULL
    """The communicator of the reductions, created by the first one."""

    @operation
    def reduce(self, sendobj: Any, op: MPI.Op | _Op = MPI.SUM, root: int = 0) -> Any | None:
        if not 0 <= root < self.size:
            raise MPI.Exception(MPI.ERR_ROOT)
        data = MPI.pickle.dumps(sendobj)
        result = self._reduce(data, op, root)
        self._count_sent("reduce", lambda counter: [(root, len(data))] if counter.rank != root else NOTHING)
        return result

    @operation
    def allreduce(self, sendobj: Any, op: MPI.Op | _Op = MPI.SUM) -> Any:
        data = MPI.pickle.dumps(sendobj)
        result = self._reduce(data, op, 0)
        received = self._bcast(MPI.pickle.dumps(result) if self.rank == 0 else b"", 0)
        self._count_sent("allreduce", lambda _: len(data))
        return result if self.rank == 0 else MPI.pickle.loads(received)

    @operation
    def scan(self, sendobj: Any, op: MPI.Op | _Op = MPI.SUM) -> Any:
        return self._scan("scan", sendobj, op)

    @operation
    def exscan(self, sendobj: Any, op: MPI.Op | _Op = MPI.SUM) -> Any:
        return self._scan("exscan", sendobj, op)

    def _reduce(self, data: bytes, op: MPI.Op | _Op, root: int) -> Any:
        self._create_private()
        # The operation may change its arguments, so this is a copy.
        result, distance = MPI.pickle.loads(data), 1
        while distance < self.size:
            if self.rank & distance:
                self._send_object(result, self.rank & ~distance)
                break
            if self.rank | distance < self.size:
                result = op(result, self._receive_object(self.rank | distance))
            distance <<= 1
        if root != 0:
            if self.rank == 0:
                self._send_object(result, root)
            elif self.rank == root:
                result = self._receive_object(0)
        return result if self.rank == root else None

    def _scan(self, operation: str, sendobj: Any, op: MPI.Op | _Op) -> Any:
        self._create_private()
        data = MPI.pickle.dumps(sendobj)
        block = MPI.pickle.loads(data)
        results = [block] if operation == "scan" else []
        distance = 1
        while distance < self.size:
            partner = self.rank ^ distance
            if partner < self.size:
                received = self._exchange(block, partner)
                if self.rank > partner:
                    block = op(received, block)
                    results = [op(received, result) for result in results] or [received]
                else:
                    block = op(block, received)
            distance <<= 1
        self._count_sent(operation, lambda counter: to_later(counter, len(data)))
        return results[0] if results else None

    def Free(self) -> None:
        super().Free()
        if self._private != MPI.COMM_NULL:
            self._derived[:] = [comm for comm in self._derived if comm is not self._private]
            self._private.Free()

    def Revoke(self) -> None:
        """Revoke this communicator and the private one."""
        super().Revoke()
        if self._private != MPI.COMM_NULL:
            self._private.Revoke()

    def _create_private(self) -> None:
        if self._private == MPI.COMM_NULL:
            self._synchronize_before_idup()
            private, request = MPI.Intracomm(self).Idup()
            self._wait_for(private, request)
            self._private = private
            self._derived.append(private)

    def _send_object(self, obj: Any, dest: int) -> None:
        self._wait(self._private.isend(obj, dest))

    def _receive_object(self, source: int) -> Any:
        message = self._until(lambda: self._private.improbe(source))
        return unpickled(message.irecv(), self.watch.check)

    def _exchange(self, obj: Any, partner: int) -> Any:
        sending = self._private.isend(obj, partner)
        try:
            received = self._receive_object(partner)
        except BaseException:
            keep_alive(sending)
            raise
        self._wait(sending)
        return received
