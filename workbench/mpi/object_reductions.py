"""Reductions of pickled objects, that can be ended from outside: in pairs of ranks, in as many rounds as mpi4py."""
# ruff: noqa: D102, N802  (names and documentation are mpi4py's)

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from workbench.mpi.derived import DerivedCommunicators
from workbench.mpi.object_collectives import ObjectCollectives
from workbench.mpi.operation import operation
from workbench.mpi.polling import keep_alive
from workbench.mpi.request import unpickled
from workbench.mpi.traffic import NOTHING, to_later

_Op = Callable[[Any, Any], Any]


class ObjectReductions(ObjectCollectives, DerivedCommunicators):
    """Blocking reductions of pickled objects, by messages on a communicator that nobody else speaks on."""

    _private = MPI.COMM_NULL
    """Where reductions speak, once there has been one."""

    @operation
    def reduce(self, sendobj: Any, op: MPI.Op | _Op = MPI.SUM, root: int = 0) -> Any | None:
        if not 0 <= root < self.size:
            raise MPI.Exception(MPI.ERR_ROOT)
        data = MPI.pickle.dumps(sendobj)
        result = self._reduce(data, op, root)
        self._sent("reduce", lambda its: [(root, len(data))] if its.rank != root else NOTHING)
        return result

    @operation
    def allreduce(self, sendobj: Any, op: MPI.Op | _Op = MPI.SUM) -> Any:
        data = MPI.pickle.dumps(sendobj)
        result = self._reduce(data, op, 0)
        received = self._bcast(MPI.pickle.dumps(result) if self.rank == 0 else b"", 0)
        self._sent("allreduce", lambda _: len(data))
        return result if self.rank == 0 else MPI.pickle.loads(received)

    @operation
    def scan(self, sendobj: Any, op: MPI.Op | _Op = MPI.SUM) -> Any:
        return self._scan("scan", sendobj, op)

    @operation
    def exscan(self, sendobj: Any, op: MPI.Op | _Op = MPI.SUM) -> Any:
        return self._scan("exscan", sendobj, op)

    def _reduce(self, data: bytes, op: MPI.Op | _Op, root: int) -> Any:
        self._meet_in_private()
        # a copy of what the rank has given, since the operation may change it
        result, distance = MPI.pickle.loads(data), 1
        while distance < self.size:
            if self.rank & distance:
                self._give(result, self.rank & ~distance)
                break
            if self.rank | distance < self.size:
                result = op(result, self._take(self.rank | distance))
            distance <<= 1
        if root != 0:
            if self.rank == 0:
                self._give(result, root)
            elif self.rank == root:
                result = self._take(0)
        return result if self.rank == root else None

    def _scan(self, operation: str, sendobj: Any, op: MPI.Op | _Op) -> Any:
        self._meet_in_private()
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
        self._sent(operation, lambda its: to_later(its, len(data)))
        return results[0] if results else None

    def Free(self) -> None:
        super().Free()
        if self._private != MPI.COMM_NULL:
            self._offspring[:] = [comm for comm in self._offspring if comm is not self._private]
            self._private.Free()

    def Revoke(self) -> None:
        """Revoke it, and where its reductions speak."""
        super().Revoke()
        if self._private != MPI.COMM_NULL:
            self._private.Revoke()

    def _meet_in_private(self) -> None:
        if self._private == MPI.COMM_NULL:
            self._meet_before_idup()
            private, request = MPI.Intracomm(self).Idup()
            self._wait_for(private, request)
            self._private = private
            self._offspring.append(private)

    def _give(self, obj: Any, dest: int) -> None:
        self._wait(self._private.isend(obj, dest))

    def _take(self, source: int) -> Any:
        message = self._until(lambda: self._private.improbe(source))
        return unpickled(message.irecv(), self.watch.check)

    def _exchange(self, obj: Any, partner: int) -> Any:
        sending = self._private.isend(obj, partner)
        try:
            received = self._take(partner)
        except BaseException:
            keep_alive(sending)
            raise
        self._wait(sending)
        return received
