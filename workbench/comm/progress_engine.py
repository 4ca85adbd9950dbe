"""Frames on their way by MPI: what the event loops of this process have outstanding, and who moves it on.

The event loop itself tests the requests, while there are some, and calls MPI a few times in the seconds after:
no thread, and no polling of an idle process. This was chosen by measurement against a thread that is handed the request
and hands the news back, two ranks on one host. Once the sender has posted, the first test of a receive copies the
whole frame: on Open MPI 5 and MPICH 5, from 64 KiB to 64 MiB, however seldom the sender looks after its side. The
thread only adds its two switches: 0.06 against 0.22 ms at 256 KiB, 0.29 against 0.50 ms at 2 MiB, 1.8 against 2.1 ms
at 16 MiB, and up to 8 ms more at any size while a task computes in Python, for the interpreter gives way every 5 ms.
The loop is away for the time of one chunk at most, 8 ms, then serves others in between.

Where MPI cannot copy at one stroke (no process_vm_readv, or another host) a frame moves piece by piece while both
sides call MPI: 2 MB took 300 ms when each looked once a millisecond. There the first tests of a receive fail. Then the
receiver nudges the sender through the socket, and both attend to the frame in bursts until it is there.
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

# Seconds that a receive goes on for after the peer's socket has ended. A peer that lives ends its socket when its
# frames have arrived: that long the last of them may be in the MPI library's own buffers.
_GRACE = 2.0
# Bytes in a second that a transfer makes at least while both sides attend to it, and seconds to allow besides.
_SLOWEST, _ALLOWED = 1e8, 0.05
# Seconds that the loop attends to such a transfer at a time, and to one that nobody has asked it to attend to: MPICH
# moves no more than 8 KiB at a test where it cannot copy at one stroke.
_BURST, _GLANCE = 0.0003, 0.0001
# Seconds between two tests: at least, and at most.
_SOON, _SELDOM = 0.001, 0.02
# Seconds between two looks, growing from _SOON, at which what waits in MPI to be sent is taken for sent.
# Calls of MPI for each second between two looks, and at most at one look.
_SETTLED, _CALLS, _MOST_CALLS = 4.0, 20_000, 1000
# Seconds of these calls at a time: where processes share cores, Open MPI yields at each call, and a thousand calls
# beside programs that compute took up to seven seconds, in which the event loop served nobody.
_SLICE = 0.002
# Seconds until a send to a peer whose socket has ended is given up, and between two tests of it from then on: a peer
# that was only slow receives it yet.
_ABANDON, _RARELY = 30.0, 1.0

Post = Callable[[memoryview, int], "MPI.Request"]


class Transfer:
    """The frames of one message on their way by MPI in one direction.

    Parameters
    ----------
    post
        Posts a chunk, given its memory and its tag.
    frames
        Memory and tag of each frame.
    window
        Bytes that may be posted and not complete; one chunk may be in any case.
    status
        For receives, where MPI notes how much has come; None for sends, which cannot be cancelled.
    peer_is_gone
        Tells whether the socket to the peer has ended.
    when_over
        Called once: with None when all frames have arrived, with the error as soon as it is clear that they do not.

    Notes
    -----
    It keeps the requests, and by them the memory, until MPI has done with them. It belongs to one event loop.
    """

    __slots__ = (
        "__weakref__", "_chunks", "_flying", "_post", "_requests", "_status", "_waiters", "_when_over", "_window",
        "attended_until", "error", "failure", "finished", "gone_since", "is_receive", "news", "peer_is_gone", "size",
    )  # fmt: skip

    def __init__(
        self,
        post: Post,
        frames: Sequence[tuple[memoryview, int]],
        *,
        window: float,
        status: MPI.Status | None,
        peer_is_gone: Callable[[], bool],
        when_over: Callable[[str | None], None],
    ) -> None:
        self._post, self._window, self._status, self.peer_is_gone = post, window, status, peer_is_gone
        self.is_receive = status is not None
        """Whether it can be cancelled when the peer is dead."""
        self._when_over = when_over
        self._chunks = deque(
            (frame[at : at + framing.CHUNK], tag) for frame, tag in frames for at in range(0, len(frame), framing.CHUNK)
        )
        self._requests: deque[tuple[MPI.Request, int]] = deque()
        self._flying = 0
        self.size = sum(len(frame) for frame, _ in frames)
        """Bytes of all frames."""
        self.attended_until = 0.0
        """Until when both sides move it on as fast as they can, in seconds."""
        self._waiters: list[asyncio.Future[None]] = []
        self.news = time.monotonic()
        """When something of it was last complete, in seconds."""
        self.gone_since: float | None = None
        """Since when the peer's socket has been seen to be at its end."""
        self.finished = False
        self.error: str | None = None
        """Why nobody waits for it any more. Not an exception: its traceback would hold what holds it."""
        self.failure: str | None = None
        """Why some of it does not arrive, whatever MPI does yet; None for a send that may still be received."""

    def waiter(self) -> asyncio.Future[None] | None:
        """Return a future for its end, or None if it is finished; cancelling that leaves the transfer alone."""
        if self.finished:
            return None
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        return waiter

    @property
    def is_waiting(self) -> bool:
        """Whether something is posted that has not arrived."""
        return bool(self._requests)

    def step(self, until: float = 0.0) -> bool:
        """Post what may be posted, test what is posted; tell whether MPI has done with it.

        Parameters
        ----------
        until
            Time until which to test again and again.

        Notes
        -----
        If MPI refuses a piece or fails one, as when the peer is known to be dead, it notes that as its `failure`.
        """
        try:
            self._move(until)
        except RuntimeError as error:  # mpi4py's exception is one
            self.fail(f"MPI: {error}")
        if self._requests or self._chunks:
            return False
        self._tell()
        return True

    def _move(self, until: float) -> None:
        while self._chunks and (not self._requests or self._flying < self._window):
            chunk, tag = self._chunks.popleft()
            self._requests.append((self._post(chunk, tag), len(chunk)))
            self._flying += len(chunk)
        while self._requests:
            if self._requests[0][0].Test(self._status):
                size = self._requests.popleft()[1]
                self._flying -= size
                self.news = time.monotonic()
                # What was cancelled has no count.
                if self._status is not None and self.failure is None and (came := self._status.Get_count()) != size:
                    raise RuntimeError(f"{came} bytes came where {size} were announced")
            elif time.monotonic() >= until:
                break
            else:
                os.sched_yield()

    def _tell(self) -> None:
        when_over, self._when_over = self._when_over, _nothing
        when_over(self.failure)

    def finish(self, error: str | None = None) -> None:
        """Note that it is complete, or that it failed, and tell whoever waits."""
        self.finished, self.error = True, error
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    def fail(self, error: str) -> None:
        """Post nothing more, which would take the place of what is missing, and cancel what can be cancelled.

        The memory of what is posted is MPI's until MPI has done with it.
        """
        if self.failure is None:
            self.failure = error
            self._chunks.clear()
            if self.is_receive:
                for request, _ in self._requests:
                    with contextlib.suppress(Exception):
                        request.Cancel()
            self._tell()


class ProgressEngine:
    """The transfers of one event loop.

    Notes
    -----
    Used on its event loop only.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._active: list[Transfer] = []
        self._abandoned: list[Transfer] = []
        self._next: asyncio.Handle | None = None
        self._settling: asyncio.TimerHandle | None = None
        self._pause = _SOON
        self.tasks: set[asyncio.Task[None]] = set()
        """Connections that wait for the end of their transfers."""

    @property
    def outstanding(self) -> list[Transfer]:
        """What is not complete, whatever became of it."""
        return self._active + self._abandoned

    def start(self, transfer: Transfer) -> None:
        """Begin with a transfer; often it is finished at once."""
        until = 0.0
        if transfer.is_receive:
            # The header woke this process up, and maybe took the core from the sender, which is just about to post.
            transfer.attended_until = until = time.monotonic() + _BURST
        if not self._move(transfer, until):
            self._active.append(transfer)
            self._plan()

    def attend(self, transfers: Iterable[Transfer]) -> None:
        """Move transfers on as fast as the loop can: the peer does the same now."""
        now = time.monotonic()
        for transfer in transfers:
            transfer.attended_until = now + _ALLOWED + transfer.size / _SLOWEST
        self._plan()

    def settle(self, progress: Callable[[], object]) -> None:
        """Call MPI now and then for a while, now that frames were sent or received.

        What this side has done with may have to be sent yet: the acknowledgements of what was received, when there are
        many at a time, and pieces that MPI has copied. Both MPIs send a few whenever they are called, and nobody else
        might call them.
        """
        if self._loop.is_closed():
            return
        if self._pause > _SOON and self._settling is not None:
            self._settling.cancel()
            self._settling = None
        self._pause = _SOON
        if self._settling is None:
            self._settling = self._loop.call_later(self._pause, self._settle, progress)

    def _settle(self, progress: Callable[[], object], left: int = 0) -> None:
        left = left or min(int(self._pause * _CALLS), _MOST_CALLS)
        until = time.monotonic() + _SLICE
        try:
            while left:
                left -= 1
                progress()
                if time.monotonic() >= until:
                    break
        except RuntimeError:  # mpi4py's exception is one
            left = 0
        if left:
            self._settling = self._loop.call_later(_SOON, self._settle, progress, left)
            return
        self._pause *= 2
        if self._pause < _SETTLED:
            self._settling = self._loop.call_later(self._pause, self._settle, progress)
        else:
            self._settling, self._pause = None, _SOON

    def forget_closed(self) -> bool:
        """Tell whether its loop is closed and nothing of it is outstanding."""
        return self._loop.is_closed() and not self.outstanding

    def _plan(self) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None
        if not self._active:
            if self._abandoned:
                self._next = self._loop.call_later(_RARELY, self._poll)
            return
        now = time.monotonic()
        delay = min(_delay(transfer, now) for transfer in self._active)
        self._next = self._loop.call_later(delay, self._poll) if delay else self._loop.call_soon(self._poll)

    def _poll(self) -> None:
        self._next = None
        # One burst for all: whichever is tested, MPI moves all of them.
        now = time.monotonic()
        self._active = [
            transfer
            for transfer in self._active
            if not self._move(transfer, now + (_BURST if now < transfer.attended_until else _GLANCE))
        ]
        self._abandoned = [transfer for transfer in self._abandoned if not transfer.step()]
        self._plan()

    def _move(self, transfer: Transfer, until: float) -> bool:
        """Move a transfer on; tell whether it need not be looked after any more."""
        now = time.monotonic()
        is_over = transfer.step(until)
        if transfer.failure is not None:
            self._give_up(transfer, transfer.failure)
            return True
        if is_over:
            transfer.finish()
            return True
        if now - transfer.news < 10 * _SOON or not transfer.peer_is_gone():
            transfer.gone_since = None
            return False
        if transfer.gone_since is None:
            transfer.gone_since = now
        silent = now - max(transfer.gone_since, transfer.news)
        if silent < (_GRACE if transfer.is_receive else _ABANDON):
            return False
        self._give_up(transfer, "the peer ended with frames on their way by MPI")
        return True

    def _give_up(self, transfer: Transfer, error: str) -> None:
        if transfer.is_receive:
            transfer.fail(error)
        transfer.finish(error)
        # Its memory is MPI's until MPI says otherwise, which for the dead it may never do.
        if not transfer.step():
            self._abandoned.append(transfer)


def _nothing(error: str | None) -> None:
    """Do nothing: what is over is not over again."""


def _delay(transfer: Transfer, now: float) -> float:
    if now < transfer.attended_until or not transfer.is_waiting:
        return 0
    return min(max((now - transfer.news) / 4, _SOON), _SELDOM)


# By event loop. Not weak: the memory of a transfer that is on its way must outlive its loop.
_engines: dict[asyncio.AbstractEventLoop, ProgressEngine] = {}


def engine() -> ProgressEngine:
    """Return the engine of the running event loop."""
    loop = asyncio.get_running_loop()
    if loop not in _engines:
        for closed in [other for other, its in list(_engines.items()) if its.forget_closed()]:
            _engines.pop(closed, None)
        _engines[loop] = ProgressEngine(loop)
    return _engines[loop]


def finish(timeout: float) -> bool:
    """Finish what is outstanding, when no event loop runs any more; tell whether all is."""
    deadline = time.monotonic() + timeout
    transfers = [transfer for its in _engines.values() for transfer in its.outstanding]
    while transfers := [transfer for transfer in transfers if not transfer.step()]:
        if time.monotonic() > deadline:
            return False
        time.sleep(_SOON)
    return True
