"""Messages from rank to rank, of buffers and of pickled objects, that can be ended from outside."""
# ruff: noqa: D102, N802, PLR0917  (names and documentation are mpi4py's)

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, Literal, TypeVar, cast

from mpi4py import MPI

from workbench.mpi.message_size import nbytes
from workbench.mpi.operation import InterruptibleComm, named, operation
from workbench.mpi.polling import keep_alive, wait, withdraw
from workbench.mpi.request import Message, status_of, unpickled

F = TypeVar("F", bound=Callable[..., Any])

# Names of this module are found sooner than those of MPI.
_ANY, _IRECV = MPI.ANY_SOURCE, MPI.Comm.Irecv


class PointToPoint(InterruptibleComm):
    """Blocking point-to-point operations."""

    def Recv(
        self, buf: Any, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None
    ) -> None:
        # as `operation` has it, but for calls less: small messages take a microsecond
        watch = self.watch
        watch.enter("Recv")
        try:
            if source == _ANY and status is None:
                status = MPI.Status()
            wait(_IRECV(self, buf, source, tag), watch.check, status, buf, withdraw)
            self._received_from("Recv", source, status)
        finally:
            watch.leave()

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
        status = status_of(status, source)
        self._check_sending(sendbuf, dest, sendtag)
        receiving = MPI.Comm.Irecv(self, recvbuf, source, recvtag)
        self.watch.messages += self.gives[dest]
        try:
            self._run(MPI.Comm.Isend, sendbuf, dest, sendtag)
            self._wait(receiving, status)
        except BaseException:
            withdraw(receiving)
            raise
        self._received_from("Sendrecv", source, status)

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
        status = status_of(status, source)
        self.watch.messages += self.gives[dest]
        self._run(MPI.Comm.Isendrecv_replace, buf, dest, sendtag, source, recvtag, status=status)
        self._received_from("Sendrecv_replace", source, status)

    @operation
    def recv(
        self,
        buf: Any = None,
        source: int = MPI.ANY_SOURCE,
        tag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> Any:
        if buf is not None:
            warnings.warn("comm.recv(buf=...) is deprecated in mpi4py: leave buf out", UserWarning, stacklevel=3)
        status = status_of(status, source)
        received = self._received(buf, source, tag, status)
        self._received_from("recv", source, status)
        return received

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
        data, status = pickled(sendobj, dest), status_of(status, source)
        message = [data, MPI.BYTE]
        self._check_sending(message, dest, sendtag)
        MPI.Comm.iprobe(self, source, recvtag)  # raises where nothing can be received
        receive = self._receiving(recvbuf, source, recvtag)
        self.watch.messages += self.gives[dest]
        sending = MPI.Comm.Isend(self, message, dest, sendtag)
        try:
            received = unpickled(receive(), self.watch.check, status)
        except BaseException:
            keep_alive(sending)
            raise
        self._wait(sending)
        self._sent("sendrecv", lambda _: (dest, len(data)))
        self._received_from("sendrecv", source, status)
        return received

    def _matched(self, message: MPI.Message, source: int, status: MPI.Status | None) -> Message:
        self.watch.messages -= self.takes[source if status is None else status.source]
        self._taken(source)
        return Message(message, self.watch)

    def _received(self, buf: Any, source: int, tag: int, status: MPI.Status | None) -> Any:
        return unpickled(self._receiving(buf, source, tag)(), self.watch.check, status)

    def _receiving(self, buf: Any, source: int, tag: int) -> Callable[[], MPI.Request]:
        """Return what receives an object."""
        if buf is not None:
            posted = MPI.Comm.irecv(self, buf, source, tag)
            return lambda: posted
        return lambda: self._until(lambda: MPI.Comm.improbe(self, source, tag)).irecv()

    def _check_sending(self, message: Any, dest: int, tag: int) -> None:
        """Raise if a message cannot be sent: before a receive is posted that could take the message of another."""
        MPI.Comm.Send_init(self, message, dest, tag).Free()


def pickled(obj: Any, dest: int) -> bytes:
    """Return what is sent for an object. mpi4py does not pickle what goes to nobody."""
    return MPI.pickle.dumps(obj) if dest != MPI.PROC_NULL else b""


def _message(blocking: F, twin: Callable[..., MPI.Request]) -> F:
    """Return the blocking operation as one that posts its non-blocking twin and waits for it."""
    name = blocking.__name__

    @functools.wraps(blocking)
    def send(self: PointToPoint, buf: Any, dest: int, tag: int = 0) -> None:
        # as `operation` has it, but for calls less: small messages take a microsecond
        watch = self.watch
        watch.enter(name)
        try:
            watch.messages += self.gives[dest]
            wait(twin(self, buf, dest, tag), watch.check, None, buf)
            if (counters := watch.counters) is not None:
                counting = self._counting
                if counting is None or counting.counters is not counters:
                    counting = self.counting(counters)
                counting.message(name, dest, nbytes(buf), watch.since)
        finally:
            watch.leave()

    return cast("F", named(send, name))


def _sending(blocking: F, twin: Callable[..., MPI.Request]) -> F:
    """Return the blocking operation as one that posts the non-blocking one of a buffer with the pickled object."""
    name = blocking.__name__

    @operation
    @functools.wraps(blocking)
    def send(self: PointToPoint, obj: Any, dest: int, tag: int = 0) -> None:
        data = pickled(obj, dest)
        self.watch.messages += self.gives[dest]
        self._run(twin, [data, MPI.BYTE], dest, tag)
        self._sent(name, lambda _: (dest, len(data)))

    return cast("F", send)


def _looking(method: F) -> F:
    """Return an operation that matches a message, if there is one, as one whose receiving can be ended."""

    @functools.wraps(method)
    def look(
        self: PointToPoint, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None
    ) -> MPI.Message | None:
        self.watch.check()
        status = status_of(status, source)
        found = method(self, source, tag, status)
        return None if found is None else self._matched(found, source, status)

    return cast("F", named(look, method.__name__))


def _probing(blocking: F, attempt: Callable[..., Any]) -> F:
    """Return the blocking operation as one that looks again and again whether there is a message."""

    @operation
    @functools.wraps(blocking)
    def probe(
        self: PointToPoint, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None
    ) -> MPI.Message | Literal[True]:
        status = status_of(status, source)
        found: MPI.Message | Literal[True] = self._until(lambda: attempt(self, source, tag, status))
        return found if found is True else self._matched(found, source, status)

    return cast("F", probe)


for _name, _attempt in {"Probe": "Iprobe", "probe": "iprobe", "Mprobe": "Improbe", "mprobe": "improbe"}.items():
    setattr(PointToPoint, _name, _probing(getattr(MPI.Comm, _name), getattr(MPI.Comm, _attempt)))
for _name in ("Improbe", "improbe"):
    setattr(PointToPoint, _name, _looking(getattr(MPI.Comm, _name)))
for _name in ("Send", "Bsend", "Ssend", "Rsend"):
    _blocking, _twin = getattr(MPI.Comm, _name), getattr(MPI.Comm, f"I{_name.lower()}")
    setattr(PointToPoint, _name, _message(_blocking, _twin))
for _name in ("send", "bsend", "ssend"):
    setattr(PointToPoint, _name, _sending(getattr(MPI.Comm, _name), getattr(MPI.Comm, f"I{_name}")))
