"""One SPMD call on one rank: a function of the user that runs on the rank's SPMD thread, and can be ended."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from workbench.collective import serialize
from workbench.collective.protocol import Outcome
from workbench.collective.rank_state import RankState
from workbench.mpi.call_state import CallCancelled, CallState
from workbench.mpi.counters import KEYS
from workbench.mpi.polling import is_over, keep_alive

if TYPE_CHECKING:
    from mpi4py import MPI

    from workbench.mpi.communicator import Communicator
    from workbench.mpi.communicator_cache import CommunicatorCache

P = ParamSpec("P")
T = TypeVar("T")

ToBlocks = Callable[[Any, int], list[tuple[Any, Any]]]
"""Returns of a value on the rank of this number what is told of each block, and the block."""

# Seconds from the order to stop until Python code that makes no MPI call is interrupted, and until C code that waits
# in MPI is, where MPI can do that.
INTERRUPT, REVOKE = 0.1, 0.3
# Seconds until that is repeated, where code went on all the same: time to tidy up.
AGAIN = 2.0
# Seconds for an operation of ours to end by itself.
OURS = 1.0


class SpmdCall(RankState):
    """A call that this rank is ready for, or in.

    Parameters
    ----------
    id, name
        As of `RankState`.
    serial, ranks
        Of its communicator; see `workbench.mpi.communicator_cache`.

    Notes
    -----
    `unpack` and `run` are for the SPMD thread, everything else for the event loop of the worker.
    """

    def __init__(self, id: str, name: str, serial: int, ranks: tuple[int, ...]) -> None:  # noqa: A002
        super().__init__(id, name, CallState())
        self.ranks = ranks
        self.made: list[tuple[Any, Any]] = []
        """Blocks that are to be kept, as `to_blocks` returned them."""
        self.to_blocks: ToBlocks | None = None
        """Turns the value into blocks to keep; None: it is to be sent."""
        self.comm: Communicator | None = None
        """Its communicator, once that is made."""
        self.left: list[MPI.Request] = []
        """Requests that were not complete at its end."""
        self._serial = serial
        self._function: Callable[..., Any] | None = None
        self._whole = False
        self._lock = threading.Lock()
        self._told = 0.0
        self._interrupted = False

    def unpack(self, contents: bytes, values: Sequence[Any]) -> None:
        """Take what is to be called from a parcel: code of the user may run here, too.

        Parameters
        ----------
        contents
            Parcel with function, arguments and keyword arguments, and `to_blocks`; or with the slot of that parcel.
        values
            What the slots stand for.
        """
        self._attend(self._unpack, contents, values)

    def _unpack(self, contents: bytes, values: Sequence[Any]) -> None:
        what = serialize.loads(contents)
        if isinstance(what, serialize.Placeholder):
            what = serialize.loads(values[what.number])
        function, args, kwargs, self.to_blocks = what
        args, kwargs = serialize.fill(args, kwargs, values)
        self._function = lambda comm: function(comm, *args, **kwargs)

    def run(self, communicators: CommunicatorCache, tell: Callable[[Any], T]) -> T:
        """Call the function, and return what is told of what it returns; collective."""
        try:
            return self._attend(self._run, communicators, tell)
        finally:
            self._let_go()

    def _run(self, communicators: CommunicatorCache, tell: Callable[[Any], T]) -> T:
        from workbench.mpi.communicator import Communicator

        # It is none of the user's operations.
        counters, self.watch.counters = self.watch.counters, None
        with self.watch.doing("the making of its communicator"):
            shared = communicators.get(self._serial, self.ranks, self.watch.check)
        self.watch.counters = counters
        self.comm = comm = Communicator(shared, self.watch, _key(self.id))
        self.watch.check()
        told = tell(self._function(comm))  # type: ignore[misc]
        self._whole = True
        return told

    def _attend(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call something that `end` is to end."""
        try:
            self.begin()
            self.watch.check()
            return function(*args, **kwargs)
        finally:
            # An interrupt may come until the lock is taken, also on the way there.
            while self.running:
                try:  # noqa: SIM105  (suppress() is Python code that would be interrupted itself)
                    self._finish()
                except CallCancelled:
                    pass

    def _finish(self) -> None:
        with self._lock:
            self.running = False
        if self._interrupted:
            # One may be on its way, and is to arrive here. To take it back, by NULL, has CPython 3.11 look for it from
            # then on at each instruction, and code that is traced stand still.
            self._interrupted = False
            while True:
                # Again, because a callback of the garbage collector may swallow one.
                _interrupt(self.thread)

    def _let_go(self) -> None:
        """Forget what may be large, but for what MPI may write to yet."""
        from mpi4py import MPI

        self._function = None
        # A persistent one that the user started, and freed, by a copy, MPI.Prequest(request), may look active. After an
        # error its buffers are kept all the same, for MPI may write to them.
        posted = [request for request in self.watch.posted if request and (request.started or not self._whole)]
        self.watch.posted = []
        for request in posted:
            if request.receives and not is_over(request):
                with contextlib.suppress(MPI.Exception):
                    request.Cancel()
        self.left = [request for request in posted if not (self._whole and is_over(request))]
        for request in self.left:
            keep_alive(request)

    def left_behind(self) -> Outcome:
        """Return what would come between the next call and its messages, on the same communicator."""
        watch = self.watch
        return {"pending": bool(self.left) or watch.doubtful or watch.unknown > 0, "messages": watch.messages & KEYS}

    def end(self, reason: str, call_later: Callable[[float, Callable[[], None]], Any]) -> None:
        """Have it end: where it waits in MPI at once, in Python code soon, in C code if MPI can do that.

        Parameters
        ----------
        reason
            What `CallCancelled` will say.
        call_later
            Runs a function after so many seconds.
        """
        if self.watch.ended is not None:
            return
        self.watch.end(reason)
        self._told = time.monotonic()
        used = self._used()
        call_later(INTERRUPT, lambda: self._interrupt(used, call_later))
        spot = self._spot()
        call_later(REVOKE, lambda: self._revoke(spot, call_later))

    def _interrupt(self, before: float, call_later: Callable[[float, Callable[[], None]], Any]) -> None:
        with self._lock:
            if not self.running:
                return
            used = self._used()
            # In an MPI call of ours it sees for itself that it was ended, and is not to be cut off in the middle of it.
            # Where it sleeps in C it would not notice, and until it did, code that is traced would stand still in all
            # threads (CPython 3.11).
            later = self.watch.operation is not None or used == before
            if not later:
                self._interrupted = True
                _interrupt(self.thread)
        # It may come back from MPI to code that never calls that again, and code may take any error for nothing.
        call_later(INTERRUPT if later else AGAIN, lambda: self._interrupt(used, call_later))

    def _used(self) -> float:
        """Return the CPU seconds that its thread has used; 0 before it runs."""
        return time.clock_gettime(time.pthread_getcpuclockid(self.thread)) if self.thread else 0.0

    def _revoke(self, before: Any, call_later: Callable[[float, Callable[[], None]], Any]) -> None:
        """Revoke the communicator if code in C waits in it, as far as can be seen: Python did not get on."""
        from mpi4py import MPI

        if not self.running or self.comm is None or MPI.Query_thread() != MPI.THREAD_MULTIPLE:
            return  # this is the thread of the event loop, and not every MPI takes calls of several
        spot = self._spot()
        if spot is not None and spot == before:
            self.comm.revoke()
        else:
            call_later(REVOKE, lambda: self._revoke(spot, call_later))

    def _spot(self) -> Any:
        """Return where the code of the user is; None while an operation of ours may yet end by itself."""
        if self.watch.operation:
            return self.watch.count if time.monotonic() - self._told > OURS else None
        frame = sys._current_frames().get(self.thread or 0)  # noqa: SLF001  (documented)
        return None if frame is None else (id(frame), frame.f_lasti)


def _key(call: str) -> int:
    """Return what tells the communicator of a call from all others: the same on all ranks."""
    return int(call, 16) & KEYS


def _interrupt(thread: int | None) -> None:
    """Have a thread raise `CallCancelled` at its next instruction of Python."""
    if thread is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(CallCancelled))
