"""Cancelable reductions of pickled objects, in pairs of ranks and with as many rounds as in mpi4py."""
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
