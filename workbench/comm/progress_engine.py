"""Frames that are being sent or received over MPI, and the polling that completes them.

The event loop itself tests the outstanding requests, and calls MPI a few times in the seconds after them. No thread is
used, and an idle process does not poll. A thread was slower in a measurement with two ranks on one host: after the
sender has posted, the first test of a receive copies the whole frame, with Open MPI 5 and MPICH 5 and from 64 KiB to
64 MiB, however rarely the sender polls. A thread only adds two switches: 0.06 against 0.22 ms at 256 KiB, 0.29 against
0.50 ms at 2 MiB, 1.8 against 2.1 ms at 16 MiB, and up to 8 ms more at any size while a task computes in Python, because
the interpreter switches threads every 5 ms. One chunk blocks the loop for at most 8 ms.

If MPI cannot copy in one step (no process_vm_readv, or another host), a frame moves piece by piece while both
sides call MPI: 2 MB took 300 ms with one poll per millisecond. In this case the first tests of a receive fail. Then the
receiver sends a request for progress through the socket, and both sides poll in bursts until the frame has arrived.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from workbench.comm import framing

if TYPE_CHECKING:
    from mpi4py import MPI

# Seconds that a receive continues after the end of the peer's socket. A live peer shuts its socket down when its frames
# have arrived, but the last of them may be in buffers of the MPI library for this time.
_RECEIVE_TIMEOUT = 2.0
# The minimal bytes per second of a transfer while both sides poll in bursts, and additional seconds.
_MIN_RATE, _ATTEND_EXTRA = 1e8, 0.05
# Seconds of one burst for such a transfer, and for other transfers: MPICH moves at most 8 KiB per test if it cannot
# copy in one step.
_BURST, _GLANCE = 0.0003, 0.0001
# Seconds between two tests, at least and at most.
_MIN_INTERVAL, _MAX_INTERVAL = 0.001, 0.02
# After a transfer, MPI is called at intervals that grow from _MIN_INTERVAL to this number of seconds; then all pending
# messages of MPI count as sent. Calls of MPI per second of an interval, and at most after one interval.
_MAX_SETTLE_INTERVAL, _SETTLE_CALL_RATE, _MAX_SETTLE_CALLS = 4.0, 20_000, 1000
# Seconds of such calls in sequence. If processes share cores, Open MPI yields in each call, and a thousand calls
# beside computing programs blocked the event loop for up to seven seconds.
_SETTLE_SLICE = 0.002
# Seconds until a send to a peer whose socket has ended is abandoned, and between two later tests of the send, which a
# slow peer may still receive.
_SEND_TIMEOUT, _ABANDONED_INTERVAL = 30.0, 1.0

Post = Callable[[memoryview, int], "MPI.Request"]


class Transfer:
    """The frames of one message that are sent or received over MPI.

    Parameters
    ----------
    post
        Posts a chunk, given its memory and its tag.
    frames
        Memory and tag of each frame.
    window
        Bytes that may be posted and incomplete. One chunk is always posted.
    status
        The status for receives; None for sends, which cannot be canceled.
    peer_has_ended
        Returns whether the socket to the peer has ended.
    when_done
        Called one time: with None when all frames have arrived, or with the error as soon as they cannot arrive.

    Notes
    -----
    A transfer holds the requests, and through them the memory, until MPI has completed them. It is used on one event
    loop only.
    """

    __slots__ = (
        "__weakref__", "_chunks", "_post", "_posted_bytes", "_requests", "_status", "_waiters", "_when_done", "_window",
        "attended_until", "ended_since", "error", "failure", "finished", "is_receive", "last_progress",
        "peer_has_ended", "size",
    )  # fmt: skip

    def __init__(
        self,
        post: Post,
        frames: Sequence[tuple[memoryview, int]],
        *,
        window: float,
        status: MPI.Status | None,
        peer_has_ended: Callable[[], bool],
        when_done: Callable[[str | None], None],
    ) -> None:
        self._post, self._window, self._status, self.peer_has_ended = post, window, status, peer_has_ended
        self.is_receive = status is not None
        """Whether the transfer can be canceled when the peer is dead."""
        self._when_done = when_done
        self._chunks = deque(
            (frame[at : at + framing.CHUNK], tag) for frame, tag in frames for at in range(0, len(frame), framing.CHUNK)
        )
        self._requests: deque[tuple[MPI.Request, int]] = deque()
        self._posted_bytes = 0
        self.size = sum(len(frame) for frame, _ in frames)
        """Bytes of all frames."""
        self.attended_until = 0.0
        """Time until which both sides poll in bursts, in seconds."""
        self._waiters: list[asyncio.Future[None]] = []
        self.last_progress = time.monotonic()
        """Time of the last completed chunk, in seconds."""
        self.ended_since: float | None = None
        """Time at which the end of the peer's socket was first seen."""
        self.finished = False
        self.error: str | None = None
        """Reason why the wait ended with a failure. Not an exception, whose traceback would make a reference cycle."""
        self.failure: str | None = None
        """Reason why a part cannot arrive; None for a send that may still be received."""

    def waiter(self) -> asyncio.Future[None] | None:
        """Return a future for the end of the transfer, or None if it is finished; it can be canceled alone."""
        if self.finished:
            return None
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        return waiter

    @property
    def is_waiting(self) -> bool:
        """Whether a posted chunk has not arrived."""
        return bool(self._requests)

    def step(self, until: float = 0.0) -> bool:
        """Post and test chunks until the time `until`; return whether MPI has completed all.

        An error of MPI, for example if the peer is known to be dead, becomes the `failure`.
        """
        try:
            self._move(until)
        except RuntimeError as error:  # mpi4py's exception is one
            self.fail(f"MPI: {error}")
        if self._requests or self._chunks:
            return False
        self._report()
        return True

    def _move(self, until: float) -> None:
        while self._chunks and (not self._requests or self._posted_bytes < self._window):
            chunk, tag = self._chunks.popleft()
            self._requests.append((self._post(chunk, tag), len(chunk)))
            self._posted_bytes += len(chunk)
        while self._requests:
            if self._requests[0][0].Test(self._status):
                size = self._requests.popleft()[1]
                self._posted_bytes -= size
                self.last_progress = time.monotonic()
                # A canceled request has no count.
                if self._status is not None and self.failure is None and (count := self._status.Get_count()) != size:
                    raise RuntimeError(f"received {count} bytes, but {size} were announced")
            elif time.monotonic() >= until:
                break
            else:
                os.sched_yield()

    def _report(self) -> None:
        when_done, self._when_done = self._when_done, _ignore
        when_done(self.failure)

    def finish(self, error: str | None = None) -> None:
        """Mark the transfer as complete or failed, and wake its waiters."""
        self.finished, self.error = True, error
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    def fail(self, error: str) -> None:
        """Post no more chunks, which would replace the missing ones, and cancel the receives.

        MPI owns the memory of posted requests until they are complete.
        """
        if self.failure is None:
            self.failure = error
            self._chunks.clear()
            if self.is_receive:
                for request, _ in self._requests:
                    with contextlib.suppress(Exception):
                        request.Cancel()
            self._report()


class ProgressEngine:
    """The transfers of one event loop, and used only on this loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._active: list[Transfer] = []
        self._abandoned: list[Transfer] = []
        self.next_poll: asyncio.Handle | None = None
        self._settling: asyncio.TimerHandle | None = None
        self._pause = _MIN_INTERVAL
        self.tasks: set[asyncio.Task[None]] = set()
        """Connections that wait for the end of their transfers."""

    @property
    def outstanding(self) -> list[Transfer]:
        """The incomplete transfers, also the abandoned ones."""
        return self._active + self._abandoned

    def start(self, transfer: Transfer) -> None:
        """Start a transfer, which often finishes immediately."""
        until = 0.0
        if transfer.is_receive:
            # The header may have preempted the sender on its core just before the sender posts.
            transfer.attended_until = until = time.monotonic() + _BURST
        if not self._move(transfer, until):
            self._active.append(transfer)
            self._plan()

    def attend(self, transfers: Iterable[Transfer]) -> None:
        """Poll transfers in bursts, as the peer does now."""
        now = time.monotonic()
        for transfer in transfers:
            transfer.attended_until = now + _ATTEND_EXTRA + transfer.size / _MIN_RATE
        self._plan()

    def settle(self, progress: Callable[[], object]) -> None:
        """Call MPI at growing intervals after frames were sent or received.

        MPI may still hold acknowledgments of many received frames, or pieces that it has copied. Both MPIs send
        a few in each call, and no other code may call MPI.
        """
        if self._loop.is_closed():
            return
        if self._pause > _MIN_INTERVAL and self._settling is not None:
            self._settling.cancel()
            self._settling = None
        self._pause = _MIN_INTERVAL
        if self._settling is None:
            self._settling = self._loop.call_later(self._pause, self._settle, progress)

    def _settle(self, progress: Callable[[], object], left: int = 0) -> None:
        left = left or min(int(self._pause * _SETTLE_CALL_RATE), _MAX_SETTLE_CALLS)
        until = time.monotonic() + _SETTLE_SLICE
        try:
            while left:
                left -= 1
                progress()
                if time.monotonic() >= until:
                    break
        except RuntimeError:  # mpi4py's exception is one
            left = 0
        if left:
            self._settling = self._loop.call_later(_MIN_INTERVAL, self._settle, progress, left)
            return
        self._pause *= 2
        if self._pause < _MAX_SETTLE_INTERVAL:
            self._settling = self._loop.call_later(self._pause, self._settle, progress)
        else:
            self._settling, self._pause = None, _MIN_INTERVAL

    def is_finished(self) -> bool:
        """Return whether the loop is closed and no transfer is outstanding."""
        return self._loop.is_closed() and not self.outstanding

    def _plan(self) -> None:
        if self.next_poll is not None:
            self.next_poll.cancel()
            self.next_poll = None
        if not self._active:
            if self._abandoned:
                self.next_poll = self._loop.call_later(_ABANDONED_INTERVAL, self._poll)
            return
        now = time.monotonic()
        delay = min(_delay(transfer, now) for transfer in self._active)
        self.next_poll = self._loop.call_later(delay, self._poll) if delay else self._loop.call_soon(self._poll)

    def _poll(self) -> None:
        self.next_poll = None
        # One burst serves all transfers, because each test makes progress for all of them.
        now = time.monotonic()
        self._active = [
            transfer
            for transfer in self._active
            if not self._move(transfer, now + (_BURST if now < transfer.attended_until else _GLANCE))
        ]
        self._abandoned = [transfer for transfer in self._abandoned if not transfer.step()]
        self._plan()

    def _move(self, transfer: Transfer, until: float) -> bool:
        """Step a transfer; return whether it needs no more polling."""
        now = time.monotonic()
        is_done = transfer.step(until)
        if transfer.failure is not None:
            self._give_up(transfer, transfer.failure)
            return True
        if is_done:
            transfer.finish()
            return True
        if now - transfer.last_progress < 10 * _MIN_INTERVAL or not transfer.peer_has_ended():
            transfer.ended_since = None
            return False
        if transfer.ended_since is None:
            transfer.ended_since = now
        silent = now - max(transfer.ended_since, transfer.last_progress)
        if silent < (_RECEIVE_TIMEOUT if transfer.is_receive else _SEND_TIMEOUT):
            return False
        self._give_up(transfer, "the peer ended while frames over MPI were outstanding")
        return True

    def _give_up(self, transfer: Transfer, error: str) -> None:
        if transfer.is_receive:
            transfer.fail(error)
        transfer.finish(error)
        # MPI owns the memory until the requests are complete, which with a dead peer may never happen.
        if not transfer.step():
            self._abandoned.append(transfer)


def _ignore(error: str | None) -> None:
    """Do nothing: the end of a transfer is reported one time."""


def _delay(transfer: Transfer, now: float) -> float:
    if now < transfer.attended_until or not transfer.is_waiting:
        return 0
    return min(max((now - transfer.last_progress) / 4, _MIN_INTERVAL), _MAX_INTERVAL)


# By event loop. The keys are not weak, because the memory of an outstanding transfer must outlive its loop.
_engines: dict[asyncio.AbstractEventLoop, ProgressEngine] = {}


def engine() -> ProgressEngine:
    """Return the engine of the running event loop."""
    loop = asyncio.get_running_loop()
    if loop not in _engines:
        for closed in [other for other, progress in list(_engines.items()) if progress.is_finished()]:
            _engines.pop(closed, None)
        _engines[loop] = ProgressEngine(loop)
    return _engines[loop]


def finish(timeout: float) -> bool:
    """Finish outstanding transfers after all event loops have ended; return whether all are complete."""
    deadline = time.monotonic() + timeout
    transfers = [transfer for progress in _engines.values() for transfer in progress.outstanding]
    while transfers := [transfer for transfer in transfers if not transfer.step()]:
        if time.monotonic() > deadline:
            return False
        time.sleep(_MIN_INTERVAL)
    return True
