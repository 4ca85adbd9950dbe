"""Requests and matched messages with cancelable waits."""
# ruff: noqa: D102, N802  (names and documentation are mpi4py's)

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, Self, cast

from mpi4py import MPI

from workbench.mpi.call_state import CallState
from workbench.mpi.operation import Pairs
from workbench.mpi.polling import completes, keep_alive, poll, wait


def unpickled(request: MPI.Request, check: Callable[[], None], status: MPI.Status | None = None) -> Any:
    """Wait for a request and return the received object."""

    def attempt() -> Any:
        done, received = request.test(status)
        return (received,) if done else None

    try:
        return poll(attempt, check)[0]
    except BaseException:
        keep_alive(request)
        raise


def status_of(status: MPI.Status | None, source: int) -> MPI.Status | None:
    """Return `status`, or a new one if the source of a message is not known without a status."""
    return MPI.Status() if status is None and source == MPI.ANY_SOURCE else status


class Request(MPI.Request):
    """A request of a `Communicator`, with cancelable waits.

    Notes
    -----
    Waits for several requests are cancelable if they are called on this class or on a request:
    ``request.Waitall(requests)``, ``type(request).Waitall(requests)``. ``MPI.Request.Waitall(requests)``, the method of
    mpi4py's class, is not cancelable: it passes the requests to MPI, and a subclass cannot replace it.
    """

    watch: CallState
    buffers: object
    """Buffers that MPI uses until the request is complete, if mpi4py's request does not hold them."""
    receives = False
    """Whether the request only receives, so that it can be canceled."""
    started = True
    """Whether an operation of this object has started the request."""
    _received_pairs: Pairs | None = None
    """For a receive, until it is known whether a message was received."""
    _source = MPI.PROC_NULL

    def __new__(
        cls, request: MPI.Request | None = None, watch: CallState | None = None, buffers: object = None
    ) -> Self:
        """Take over a request of mpi4py."""
        # super() of a persistent request would be a class with another memory layout than that of this class.
        self = MPI.Request.__new__(cls, request)
        self.watch = watch or CallState()
        self.buffers = buffers
        return self

    def count_message(self, received_pairs: Pairs, source: int) -> None:
        """Count the message that the request receives from a rank, or later one from any rank."""
        self._received_pairs, self._source = received_pairs, source
        if source == MPI.ANY_SOURCE:
            self.watch.unknown += 1
        else:
            self.watch.messages -= received_pairs[source]

    def _count_source(self, status: MPI.Status | None) -> None:
        if self._source == MPI.ANY_SOURCE and self._received_pairs is not None and status is not None:
            self.watch.unknown -= 1
            self.watch.messages -= self._received_pairs[status.source]
            self._received_pairs = None

    def Test(self, status: MPI.Status | None = None) -> bool:
        status = status_of(status, self._source)
        if done := MPI.Request.Test(self, status):
            self._count_source(status)
        self.drop_buffers()
        return done

    def test(self, status: MPI.Status | None = None) -> tuple[bool, Any]:
        status = status_of(status, self._source)
        result = MPI.Request.test(self, status)
        if result[0]:
            self._count_source(status)
        self.drop_buffers()
        return result

    def Cancel(self) -> None:
        """Cancel the request. A canceled receive has received no message."""
        MPI.Request.Cancel(self)
        received_pairs, status = self._received_pairs, MPI.Status()
        if received_pairs is None or not completes(lambda: self.Get_status(status)):
            self.watch.maybe_modified = True
        elif status.Is_cancelled():
            self._received_pairs = None
            if self._source == MPI.ANY_SOURCE:
                self.watch.unknown -= 1
            else:
                self.watch.messages += received_pairs[self._source]

    def Free(self) -> None:
        """Free the request. After that, messages in flight cannot be detected."""
        self.watch.maybe_modified = True
        MPI.Request.Free(self)

    def drop_buffers(self) -> None:
        """Drop the buffers if the request is complete."""
        if not self:
            self.buffers = None

    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
        with self.watch.entered("Wait"):
            wait(self, self.watch.check, status)
        return True

    def wait(self, status: MPI.Status | None = None) -> Any:
        with self.watch.entered("wait"):
            return unpickled(self, self.watch.check, status)

    @classmethod
    def Waitany(cls, requests: Sequence[MPI.Request], status: MPI.Status | None = None) -> int:
        def attempt() -> Any:
            index, done = MPI.Request.Testany(requests, status)
            return (index,) if done else None

        return cast("int", _several("Waitany", requests, attempt)[0])

    @classmethod
    def Waitall(cls, requests: Sequence[MPI.Request], statuses: list[MPI.Status] | None = None) -> Literal[True]:
        _several("Waitall", requests, lambda: MPI.Request.Testall(requests, statuses))
        return True

    @classmethod
    def Waitsome(cls, requests: Sequence[MPI.Request], statuses: list[MPI.Status] | None = None) -> list[int] | None:
        def attempt() -> Any:
            # None means no active request, and an empty list no complete request.
            indices = MPI.Request.Testsome(requests, statuses)
            return None if indices == [] else (indices,)

        return cast("list[int] | None", _several("Waitsome", requests, attempt)[0])

    @classmethod
    def waitany(cls, requests: Sequence[MPI.Request], status: MPI.Status | None = None) -> tuple[int, Any]:
        def attempt() -> Any:
            index, done, received = MPI.Request.testany(requests, status)
            return (index, received) if done else None

        return cast("tuple[int, Any]", _several("waitany", requests, attempt))

    @classmethod
    def waitall(cls, requests: Sequence[MPI.Request], statuses: list[MPI.Status] | None = None) -> list[Any]:
        def attempt() -> Any:
            done, received = MPI.Request.testall(requests, statuses)
            return (received,) if done else None

        return cast("list[Any]", _several("waitall", requests, attempt)[0])

    @classmethod
    def waitsome(
        cls, requests: Sequence[MPI.Request], statuses: list[MPI.Status] | None = None
    ) -> tuple[list[int] | None, list[Any] | None]:
        def attempt() -> Any:
            result = MPI.Request.testsome(requests, statuses)
            return None if result[0] == [] else result

        return cast("tuple[list[int] | None, list[Any] | None]", _several("waitsome", requests, attempt))


class Prequest(Request, MPI.Prequest):
    """A persistent request of a `Communicator`, with cancelable waits.

    Its traffic is counted at each start, except by ``MPI.Prequest.Startall`` of mpi4py's class.
    """

    started = False
    starting: Callable[[str], None] | None = None
    """Counts the traffic of a start, for the operation of this name."""

    def Start(self) -> None:
        _start("Start", [self], super().Start)

    @classmethod
    def Startall(cls, requests: Sequence[MPI.Prequest]) -> None:
        _start("Startall", requests, lambda: MPI.Prequest.Startall(list(requests)))


def cancelable(request: MPI.Request, watch: CallState, buffers: object = None) -> Request:
    """Return a request of mpi4py as a cancelable one, which is kept until it is complete.

    `buffers` are those that mpi4py's request does not hold.
    """
    if buffers is not None:
        # Requests that MPI.Request.Waitall has completed still hold their buffers.
        watch.tidy()
    posted = (Prequest if isinstance(request, MPI.Prequest) else Request)(request, watch, buffers)
    watch.post(posted)
    return posted


def _start(operation: str, requests: Sequence[MPI.Prequest], start: Callable[[], None]) -> None:
    began = time.monotonic()
    start()
    ours = [request for request in requests if isinstance(request, Prequest)]
    for request in ours:
        request.started = True
        if request.starting is not None:
            request.starting(operation)
    if ours and (counters := ours[0].watch.counters) is not None:
        counters.called(operation, time.monotonic() - began)


def _several(operation: str, requests: Sequence[MPI.Request], attempt: Callable[[], Any]) -> Any:
    watch = next((request.watch for request in requests if isinstance(request, Request)), None) or CallState()
    with watch.entered(operation):
        try:
            result = poll(attempt, watch.check)
        except BaseException:
            keep_alive(*requests)
            raise
    for request in requests:
        if isinstance(request, Request):
            request.drop_buffers()
    return result


class Message(MPI.Message):
    """A matched message of a `Communicator`, with a cancelable receive."""

    watch: CallState

    def __new__(cls, message: MPI.Message | None = None, watch: CallState | None = None) -> Self:
        """Take over a message of mpi4py."""
        self = super().__new__(cls, message)
        self.watch = watch or CallState()
        return self

    def Recv(self, buf: Any, status: MPI.Status | None = None) -> None:
        with self.watch.entered("Recv"):
            wait(MPI.Message.Irecv(self, buf), self.watch.check, status)

    def recv(self, status: MPI.Status | None = None) -> Any:
        with self.watch.entered("recv"):
            return unpickled(MPI.Message.irecv(self), self.watch.check, status)

    def Irecv(self, buf: Any) -> MPI.Request:
        return cancelable(super().Irecv(buf), self.watch)

    def irecv(self) -> MPI.Request:
        return cancelable(super().irecv(), self.watch)
