"""Messages from rank to rank, of buffers and of pickled objects, that can be ended from outside."""
# ruff: noqa: D102, N802, PLR0917  (names and documentation are mpi4py's)

from __future__ import annotations

from typing import Any, Literal

from mpi4py import MPI

from workbench.rank.request import Message, unpickled
from workbench.rank.waiting import abandon
from workbench.rank.watched import Watched, operation, waiting


class PointToPoint(Watched):
    """Blocking point-to-point operations."""

    @operation
    def Recv(
        self, buf: Any, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None
    ) -> None:
        self._wait(MPI.Comm.Irecv(self, buf, source, tag), status)

    @operation
    def Sendrecv(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = MPI.ANY_SOURCE,
        recvtag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> None:
        receiving = MPI.Comm.Irecv(self, recvbuf, source, recvtag)
        try:
            self._wait(MPI.Comm.Isend(self, sendbuf, dest, sendtag))
        except BaseException:
            abandon(receiving)
            raise
        self._wait(receiving, status)

    @operation
    def Sendrecv_replace(
        self,
        buf: Any,
        dest: int,
        sendtag: int = 0,
        source: int = MPI.ANY_SOURCE,
        recvtag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> None:
        self._wait(MPI.Comm.Isendrecv_replace(self, buf, dest, sendtag, source, recvtag), status)

    @operation
    def Probe(
        self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None
    ) -> Literal[True]:
        self._until(lambda: MPI.Comm.Iprobe(self, source, tag, status))
        return True

    @operation
    def Mprobe(
        self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None
    ) -> MPI.Message:
        return Message(self._until(lambda: MPI.Comm.Improbe(self, source, tag, status)), self.watch)

    @operation
    def probe(
        self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None
    ) -> Literal[True]:
        self._until(lambda: MPI.Comm.iprobe(self, source, tag, status))
        return True

    @operation
    def mprobe(
        self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None
    ) -> MPI.Message:
        return Message(self._until(lambda: MPI.Comm.improbe(self, source, tag, status)), self.watch)

    @operation
    def recv(
        self,
        buf: Any = None,
        source: int = MPI.ANY_SOURCE,
        tag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> Any:
        return self._received(buf, source, tag, status)

    @operation
    def sendrecv(
        self,
        sendobj: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = MPI.ANY_SOURCE,
        recvtag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> Any:
        sending = MPI.Comm.isend(self, sendobj, dest, sendtag)
        try:
            received = self._received(recvbuf, source, recvtag, status)
        except BaseException:
            abandon(sending)
            raise
        self._wait(sending)
        return received

    def _received(self, buf: Any, source: int, tag: int, status: MPI.Status | None) -> Any:
        if buf is None:
            request = self._until(lambda: MPI.Comm.improbe(self, source, tag)).irecv()
        else:
            request = MPI.Comm.irecv(self, buf, source, tag)
        return unpickled(request, self.watch.check, status)


for _name in ("Send", "Bsend", "Ssend", "Rsend"):
    _blocking, _twin = getattr(MPI.Comm, _name), getattr(MPI.Comm, f"I{_name.lower()}")
    setattr(PointToPoint, _name, waiting(_blocking, _twin))
for _name in ("send", "bsend", "ssend"):
    _blocking, _twin = getattr(MPI.Comm, _name), getattr(MPI.Comm, f"i{_name}")
    setattr(PointToPoint, _name, waiting(_blocking, _twin))
