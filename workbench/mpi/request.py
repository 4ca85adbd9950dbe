"""Requests and matched messages whose waiting can be ended from outside."""
# ruff: noqa: D102, N802  (names and documentation are mpi4py's)

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, Self, cast

from mpi4py import MPI

from workbench.mpi.call_state import CallState
from workbench.mpi.pairs import Pairs
from workbench.mpi.polling import completes, keep_alive, poll, wait


def unpickled(request: MPI.Request, check: Callable[[], None], status: MPI.Status | None = None) -> Any:
    """Wait for a request as `complete` does, and return the object that it brings."""

    def attempt() -> Any:
        done, found = request.test(status)
        return (found,) if done else None

    try:
        return poll(attempt, check)[0]
    except BaseException:
        keep_alive(request)
        raise


def status_of(status: MPI.Status | None, source: int) -> MPI.Status | None:
    """Return a status where it alone will tell from whom a message is, else the one that was given."""
    return MPI.Status() if status is None and source == MPI.ANY_SOURCE else status


class Request(MPI.Request):
    """A request of a `Communicator`: its waits can be ended from outside.

    Notes
    -----
    So can those of several requests, called on this class or on a request: ``request.Waitall(requests)``,
    ``type(request).Waitall(requests)``. What cannot be ended is ``MPI.Request.Waitall(requests)``, that is a method
    of mpi4py's own class, which hands the requests to MPI without asking them, and which no subclass can replace.
    """

    watch: CallState
    held: object
    """What MPI reads and writes poll it is complete, where mpi4py's own request does not hold it."""
    receives = False
    """Whether it does nothing but receive, so that it can be cancelled."""
    started = True
    """Whether MPI works on it, or has done so, by an operation of this object."""
    _takes: Pairs | None = None
    """Of a receive, poll nobody has to know whether it has taken a message."""
    _source = MPI.PROC_NULL

    def __new__(cls, request: MPI.Request | None = None, watch: CallState | None = None, held: object = None) -> Self:
        """Take over a request of mpi4py."""
        # not super(): that of persistent ones is not the one whose memory layout Python has chosen for the class
        self = MPI.Request.__new__(cls, request)
        self.watch = watch or CallState()
        self.held = held
        return self

    def take(self, takes: Pairs, source: int) -> None:
        """Count the message that it receives from a rank, or will have received from any."""
        self._takes, self._source = takes, source
        if source == MPI.ANY_SOURCE:
            self.watch.unknown += 1
        else:
            self.watch.messages -= takes[source]

    def _taken_from(self, status: MPI.Status | None) -> None:
        if self._source == MPI.ANY_SOURCE and self._takes is not None and status is not None:
            self.watch.unknown -= 1
            self.watch.messages -= self._takes[status.source]
            self._takes = None

    def Test(self, status: MPI.Status | None = None) -> bool:
        status = status_of(status, self._source)
        if done := MPI.Request.Test(self, status):
            self._taken_from(status)
        self.let_go()
        return done

    def test(self, status: MPI.Status | None = None) -> tuple[bool, Any]:
        status = status_of(status, self._source)
        found = MPI.Request.test(self, status)
        if found[0]:
            self._taken_from(status)
        self.let_go()
        return found

    def Cancel(self) -> None:
        """Cancel it; a receive that is cancelled has taken no message."""
        MPI.Request.Cancel(self)
        takes, status = self._takes, MPI.Status()
        if takes is None or not completes(lambda: self.Get_status(status)):
            self.watch.doubtful = True
        elif status.Is_cancelled():
            self._takes = None
            if self._source == MPI.ANY_SOURCE:
                self.watch.unknown -= 1
            else:
                self.watch.messages += takes[self._source]

    def Free(self) -> None:
        """Free it; whether it sends or receives anything yet cannot be asked any more."""
        self.watch.doubtful = True
        MPI.Request.Free(self)

    def let_go(self) -> None:
        """Forget the buffers if MPI is done with them."""
        if not self:
            self.held = None

    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
        with self.watch.doing("Wait"):
            wait(self, self.watch.check, status)
        return True

    def wait(self, status: MPI.Status | None = None) -> Any:
        with self.watch.doing("wait"):
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
            # None: there is nothing to wait for; an empty list: none is complete yet
            found = MPI.Request.Testsome(requests, statuses)
            return None if found == [] else (found,)

        return cast("list[int] | None", _several("Waitsome", requests, attempt)[0])

    @classmethod
    def waitany(cls, requests: Sequence[MPI.Request], status: MPI.Status | None = None) -> tuple[int, Any]:
        def attempt() -> Any:
            index, done, found = MPI.Request.testany(requests, status)
            return (index, found) if done else None

        return cast("tuple[int, Any]", _several("waitany", requests, attempt))

    @classmethod
    def waitall(cls, requests: Sequence[MPI.Request], statuses: list[MPI.Status] | None = None) -> list[Any]:
        def attempt() -> Any:
            done, found = MPI.Request.testall(requests, statuses)
            return (found,) if done else None

        return cast("list[Any]", _several("waitall", requests, attempt)[0])

    @classmethod
    def waitsome(
        cls, requests: Sequence[MPI.Request], statuses: list[MPI.Status] | None = None
    ) -> tuple[list[int] | None, list[Any] | None]:
        def attempt() -> Any:
            found = MPI.Request.testsome(requests, statuses)
            return None if found[0] == [] else found

        return cast("tuple[list[int] | None, list[Any] | None]", _several("waitsome", requests, attempt))


class Prequest(Request, MPI.Prequest):
    """A persistent request of a `Communicator`: as `Request`.

    Notes
    -----
    What it sends is counted whenever it is started, but not by ``MPI.Prequest.Startall`` of mpi4py's own class.
    """

    started = False
    starting: Callable[[str], None] | None = None
    """Counts what it sends and receives, as of the operation of this name."""

    def Start(self) -> None:
        _start("Start", [self], super().Start)

    @classmethod
    def Startall(cls, requests: Sequence[MPI.Prequest]) -> None:
        _start("Startall", requests, lambda: MPI.Prequest.Startall(list(requests)))


def watched(request: MPI.Request, watch: CallState, held: object = None) -> Request:
    """Return a request of mpi4py as one that can be ended from outside, and that outlives the code that posted it.

    Parameters
    ----------
    held
        What MPI reads and writes, where mpi4py's request does not hold it.
    """
    if held is not None:
        # Those of them that mpi4py itself has completed, by MPI.Request.Waitall, still have theirs.
        watch.tidy()
    posted = (Prequest if isinstance(request, MPI.Prequest) else Request)(request, watch, held)
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
    with watch.doing(operation):
        try:
            found = poll(attempt, watch.check)
        except BaseException:
            keep_alive(*requests)
            raise
    for request in requests:
        if isinstance(request, Request):
            request.let_go()
    return found


class Message(MPI.Message):
    """A matched message of a `Communicator`: receiving it can be ended from outside."""

    watch: CallState

    def __new__(cls, message: MPI.Message | None = None, watch: CallState | None = None) -> Self:
        """Take over a message of mpi4py."""
        self = super().__new__(cls, message)
        self.watch = watch or CallState()
        return self

    def Recv(self, buf: Any, status: MPI.Status | None = None) -> None:
        with self.watch.doing("Recv"):
            wait(MPI.Message.Irecv(self, buf), self.watch.check, status)

    def recv(self, status: MPI.Status | None = None) -> Any:
        with self.watch.doing("recv"):
            return unpickled(MPI.Message.irecv(self), self.watch.check, status)

    def Irecv(self, buf: Any) -> MPI.Request:
        return watched(super().Irecv(buf), self.watch)

    def irecv(self) -> MPI.Request:
        return watched(super().irecv(), self.watch)
