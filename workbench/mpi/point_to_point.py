"""Cancelable point-to-point operations on buffers and pickled objects."""
# ruff: noqa: D102, N802, PLR0917  (names and documentation are mpi4py's)

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, Literal, TypeVar, cast

from mpi4py import MPI

from workbench.mpi.message_size import nbytes, packed
from workbench.mpi.operation import InterruptibleComm, named, operation
from workbench.mpi.polling import keep_alive, wait, withdraw
from workbench.mpi.request import Message, status_of, unpickled

F = TypeVar("F", bound=Callable[..., Any])

# Global names are faster than attributes of MPI.
_ANY, _BYTE, _NULL, _IRECV, _PICKLE = MPI.ANY_SOURCE, MPI.BYTE, MPI.PROC_NULL, MPI.Comm.Irecv, MPI.pickle


class PointToPoint(InterruptibleComm):
    """Blocking point-to-point operations."""

    def Recv(
        self, buf: Any, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None
    ) -> None:
        # This is `operation` inlined, because small messages take a microsecond.
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
        self._exchange_buffers(sendbuf, dest, sendtag, recvbuf, source, recvtag, status)
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
        if (contents := packed(buf, self)) is None:
            self.watch.messages += self.sent_pairs[dest]
            self._run(MPI.Comm.Isendrecv_replace, buf, dest, sendtag, source, recvtag, status=status)
        else:
            # The non-blocking operation of MPICH 5 sends other items, and memory beyond the buffer.
            self._exchange_buffers([contents, MPI.PACKED], dest, sendtag, buf, source, recvtag, status)
        self._received_from("Sendrecv_replace", source, status)

    def _exchange_buffers(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int,
        recvbuf: Any,
        source: int,
        recvtag: int,
        status: MPI.Status | None,
    ) -> None:
        self._check_sending(sendbuf, dest, sendtag)
        receiving = MPI.Comm.Irecv(self, recvbuf, source, recvtag)
        self.watch.messages += self.sent_pairs[dest]
        try:
            self._run(MPI.Comm.Isend, sendbuf, dest, sendtag)
            self._wait(receiving, status)
        except BaseException:
            withdraw(receiving)
            raise

    @operation
    def recv(
        self,
        buf: Any = None,
        source: int = MPI.ANY_SOURCE,
        tag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> Any:
        if buf is not None:
            warnings.warn("comm.recv(buf=...) is deprecated in mpi4py: omit buf", UserWarning, stacklevel=3)
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
        message = [data, _BYTE]
        self._check_sending(message, dest, sendtag)
        MPI.Comm.iprobe(self, source, recvtag)  # raises if the arguments of the receive are not valid
        receive = self._receiving(recvbuf, source, recvtag)
        self.watch.messages += self.sent_pairs[dest]
        sending = MPI.Comm.Isend(self, message, dest, sendtag)
        try:
            received = unpickled(receive(), self.watch.check, status)
        except BaseException:
            keep_alive(sending)
            raise
        self._wait(sending)
        self._count_sent("sendrecv", lambda _: (dest, len(data)))
        self._received_from("sendrecv", source, status)
        return received

    def _matched(self, message: MPI.Message, source: int, status: MPI.Status | None) -> Message:
        self.watch.messages -= self.received_pairs[source if status is None else status.source]
        self._count_received(source)
        return Message(message, self.watch)

    def _received(self, buf: Any, source: int, tag: int, status: MPI.Status | None) -> Any:
        return unpickled(self._receiving(buf, source, tag)(), self.watch.check, status)

    def _receiving(self, buf: Any, source: int, tag: int) -> Callable[[], MPI.Request]:
        """Return the function that begins to receive an object."""
        if buf is not None:
            posted = MPI.Comm.irecv(self, buf, source, tag)
            return lambda: posted
        return lambda: self._until(lambda: MPI.Comm.improbe(self, source, tag)).irecv()

    def _check_sending(self, message: Any, dest: int, tag: int) -> None:
        """Raise if a message cannot be sent, before a receive is posted that could match another message."""
        MPI.Comm.Send_init(self, message, dest, tag).Free()


def pickled(obj: Any, dest: int) -> bytes:
    """Return the pickle of an object; empty for PROC_NULL, as in mpi4py."""
    return _PICKLE.dumps(obj) if dest != _NULL else b""


def _message(blocking: F, counterpart: Callable[..., MPI.Request]) -> F:
    """Return a blocking send that posts its non-blocking counterpart and waits for it."""
    name = blocking.__name__

    @functools.wraps(blocking)
    def send(self: PointToPoint, buf: Any, dest: int, tag: int = 0) -> None:
        # This is `operation` inlined, because small messages take a microsecond.
        watch = self.watch
        watch.enter(name)
        try:
            watch.messages += self.sent_pairs[dest]
            wait(counterpart(self, buf, dest, tag), watch.check, None, buf)
            if (counters := watch.counters) is not None:
                counting = self._counting
                if counting is None or counting.counters is not counters:
                    counting = self.counting(counters)
                counting.message(name, dest, nbytes(buf), watch.since)
        finally:
            watch.leave()

    return cast("F", named(send, name))


def _sending(blocking: F, counterpart: Callable[..., MPI.Request]) -> F:
    """Return a blocking send of an object that posts the non-blocking send of its pickle."""
    name = blocking.__name__

    @operation
    @functools.wraps(blocking)
    def send(self: PointToPoint, obj: Any, dest: int, tag: int = 0) -> None:
        data = pickled(obj, dest)
        self.watch.messages += self.sent_pairs[dest]
        self._run(counterpart, [data, _BYTE], dest, tag)
        self._count_sent(name, lambda _: (dest, len(data)))

    return cast("F", send)


def _matching(method: F) -> F:
    """Return an operation that matches a message without a wait, with a cancelable receive."""

    @functools.wraps(method)
    def match(
        self: PointToPoint, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None
    ) -> MPI.Message | None:
        self.watch.check()
        status = status_of(status, source)
        message = method(self, source, tag, status)
        return None if message is None else self._matched(message, source, status)

    return cast("F", named(match, method.__name__))


def _probing(blocking: F, attempt: Callable[..., Any]) -> F:
    """Return a blocking probe that polls with its non-blocking counterpart."""

    @operation
    @functools.wraps(blocking)
    def probe(
        self: PointToPoint, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None
    ) -> MPI.Message | Literal[True]:
        status = status_of(status, source)
        match: MPI.Message | Literal[True] = self._until(lambda: attempt(self, source, tag, status))
        return match if match is True else self._matched(match, source, status)

    return cast("F", probe)


for _name, _attempt in {"Probe": "Iprobe", "probe": "iprobe", "Mprobe": "Improbe", "mprobe": "improbe"}.items():
    setattr(PointToPoint, _name, _probing(getattr(MPI.Comm, _name), getattr(MPI.Comm, _attempt)))
for _name in ("Improbe", "improbe"):
    setattr(PointToPoint, _name, _matching(getattr(MPI.Comm, _name)))
for _name in ("Send", "Bsend", "Ssend", "Rsend"):
    _blocking, _counterpart = getattr(MPI.Comm, _name), getattr(MPI.Comm, f"I{_name.lower()}")
    setattr(PointToPoint, _name, _message(_blocking, _counterpart))
for _name in ("send", "bsend", "ssend"):
    setattr(PointToPoint, _name, _sending(getattr(MPI.Comm, _name), getattr(MPI.Comm, f"I{_name}")))
