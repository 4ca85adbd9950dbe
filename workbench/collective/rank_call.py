"""One SPMD call on one rank: the function of the user runs on the SPMD thread, and can be ended."""

from __future__ import annotations

import _imp
import contextlib
import ctypes
import functools
import math
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar, cast

from workbench.call_stack import is_importing
from workbench.collective import channel, process_state, protocol, serialize
from workbench.host.output import Written
from workbench.mpi.call_state import CallCancelled, CallState
from workbench.mpi.context import without_copies
from workbench.mpi.counters import KEYS
from workbench.mpi.polling import is_over, keep_alive
from workbench.placement import in_use

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from dask.typing import Key
    from mpi4py import MPI

    from workbench.metrics.activity import Activity
    from workbench.mpi.communicator import Communicator
    from workbench.mpi.communicator_cache import CommunicatorCache
    from workbench.placement.from_results import BlockMeta


class RankState:
    """A prepared or running call or cell of this rank.

    Parameters
    ----------
    id, name
        Identity, and name in messages for people.
    watch
        State of the MPI operations.

    Notes
    -----
    The thread that runs the code of the user calls `begin`. The event loop of the worker does everything else.
    """

    kind: ClassVar[str] = "call"
    """Name of the identity in the result of `where`."""

    def __init__(self, id: str, name: str, watch: CallState) -> None:  # noqa: A002
        self.id, self.name, self.watch = id, name, watch
        self.thread: int | None = None
        """Identity of the thread that runs the code."""
        self.started = time.monotonic()
        self.running = False
        self.taken: dict[Key, Any] = {}
        """Data of the worker that the code gets and may write to, by key."""

    def begin(self) -> None:
        """Note that the current thread runs the code from now on."""
        self.thread, self.started, self.running = threading.get_ident(), time.monotonic(), True

    def put_back(self, data: MutableMapping[Key, Any]) -> dict[Key, Any]:
        """Store the blocks, to which the code may have written, in the data of the worker; return the blocks."""
        taken, self.taken = self.taken, {}
        in_use.put_back(data, taken)
        return taken

    def where(self) -> dict[str, Any] | None:
        """Return the position, see `workbench.call_stack`; None if the code does not run."""
        from workbench.call_stack import whereabouts

        if not self.running or self.thread is None:
            return None
        watch = self.watch
        where = whereabouts(self.thread, self.started, watch.operation, watch.since, watch.count)
        return {self.kind: self.id, "name": self.name, **where}


P = ParamSpec("P")
T = TypeVar("T")
D = TypeVar("D", protocol.Ready, protocol.Outcome)

# Bytes of a value above which the value is a separate frame of the message.
_LARGE = 1 << 20
# Bytes of the output of a call that are sent to the notebook, of all ranks together.
_PRINTED = 1 << 20
# Seconds from the request to end until the interrupt of Python code that makes no MPI call.
_INTERRUPT_S = 0.1
# Seconds until the next interrupt of code that has continued: time to clean up.
_REPEAT_S = 2.0
# Seconds for an import to end by itself. A later import of an interrupted module may fail: a submodule that was loaded
# is no attribute of its package then, and NumPy and PyTorch refuse a second import in a process.
IMPORT_S = 30.0


def _errors_as_data(step: Callable[P, D]) -> Callable[P, D]:
    """Return the errors of a step with code of the user as data: a `SystemExit` would end the event loop."""

    @functools.wraps(step)
    def outcome(*args: P.args, **kwargs: P.kwargs) -> D:
        try:
            return step(*args, **kwargs)
        except CallCancelled as error:
            return cast("D", {"ended": str(error)})
        except BaseException as error:  # noqa: BLE001  (whatever the code raises)
            return cast("D", {"error": serialize.pack_error(error)})

    return outcome


class SpmdCall(RankState):
    """A prepared or running call of this rank, with the number and the ranks of its communicator.

    `unpack`, `run` and `settle` run on the SPMD thread, everything else on the event loop of the worker.
    """

    def __init__(self, id: str, name: str, serial: int, ranks: tuple[int, ...]) -> None:  # noqa: A002
        super().__init__(id, name, CallState())
        self.channel = channel.Channel(id, self.watch)
        self.made: list[tuple[BlockMeta, Any]] = []
        """Blocks that the rank keeps if the call succeeds on all ranks."""
        self.counted = True
        """Whether the metrics have the call."""
        # Whether the function has returned a value that can be sent or kept.
        self._returned = False
        self._serial, self._ranks = serial, ranks
        self.function: Callable[..., Any] | None = None
        self._to_blocks: Callable[[Any, int], list[tuple[BlockMeta, Any]]] | None = None
        self._comm: Communicator | None = None
        # Requests that were incomplete at the end.
        self._left: list[MPI.Request] = []
        # Whether an earlier call or a cell has left a buffer attached, which stays.
        self._had_buffer = True
        self._lock = threading.Lock()
        self._ended_at = 0.0
        self._interrupted = False

    @_errors_as_data
    def unpack(self, contents: bytes | None, values: Sequence[Any]) -> protocol.Ready:
        """Unpack the function and the arguments, with the values for placeholders; this may run code of the user."""
        self._run_interruptible(self._unpack, values[-1] if contents is None else contents, values)
        return {}

    def _unpack(self, contents: bytes, values: Sequence[Any]) -> None:
        function, args, kwargs, self._to_blocks = serialize.loads(contents)
        args, kwargs = serialize.fill(args, kwargs, values)
        self.function = lambda comm: function(comm, *args, **kwargs)

    def run(self, *args: Any) -> protocol.Outcome:
        """Call the function, and return the outcome with the output of the function; arguments as of `_run`."""
        written = Written()
        outcome = process_state.restored(self._run, *args)
        if self.channel.sent:
            outcome["events"] = self.channel.sent
        if any(printed := written.take(_PRINTED // len(self._ranks))):
            outcome["printed"] = printed
        return outcome

    @_errors_as_data
    def _run(
        self,
        communicators: CommunicatorCache,
        activity: Activity,
        last: SpmdCall | None,
        rank: int,
        wanted: protocol.Wanted,
    ) -> protocol.Outcome:
        """Call the function, and return the outcome; collective. `last` is the previous call, if it has succeeded."""
        if last is not None:
            # Not earlier: a communicator created later may get the context of a freed one, with messages left there.
            last.free()
        from workbench.mpi import comm_world

        with activity.running(self.id, self.name, self.watch) if self.counted else contextlib.nullcontext():
            try:
                outcome = self._run_interruptible(self._call, communicators, self._ranks.index(rank), wanted)
            finally:
                channel.leave()
                comm_world.leave()
                self.watch.end_left_threads(complete=self._returned)
                self._release()
        return {**outcome, **self.left_behind()}

    def _call(self, communicators: CommunicatorCache, number: int, wanted: protocol.Wanted) -> protocol.Outcome:
        from workbench.mpi import comm_world, derived
        from workbench.mpi.communicator import Communicator

        derived.track_buffer()
        self._had_buffer = derived.is_buffer_attached()
        with self.watch.entered("the making of its communicator", counted=False):
            shared = communicators.get(self._serial, self._ranks, self.watch.check)
        self._comm = comm = Communicator(shared, self.watch, _key(self.id))
        comm_world.enter(comm)
        channel.enter(self.channel, number)
        self.watch.check()
        try:
            with without_copies():
                value = self.function(comm)  # type: ignore[misc]
        except SystemExit as end:
            # A failure; else the program has ended. An error that was unpickled by tblib has no `code`.
            if any(end.args) or self._to_blocks is not None:
                raise
            value = None
        outcome: protocol.Outcome
        if self._to_blocks is not None:
            self.made = self._to_blocks(value, number)
            blocks = [meta for meta, _ in self.made]
            outcome = {"blocks": serialize.dumps(blocks), "keys": [meta.key for meta in blocks]}
        else:
            outcome = {} if wanted["root"] and number else pack_value(value, wanted["limit"])
        self._returned = True
        return outcome

    def _run_interruptible(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function that `end` can end."""
        try:
            self.begin()
            self.watch.check()
            return function(*args, **kwargs)
        finally:
            # An interrupt may arrive until `_finish` has the lock, also on the way there.
            while self.running:
                try:  # noqa: SIM105  (suppress() is Python code that would be interrupted itself)
                    self._finish()
                except CallCancelled:
                    pass
            _release_imports()

    def _finish(self) -> None:
        with self._lock:
            self.running = False
        if self._interrupted:
            # An interrupt may be pending, and must arrive here. A withdrawal with NULL would make CPython 3.11 check
            # for an interrupt at each later instruction, and traced code would stand still.
            self._interrupted = False
            while True:
                # Again, because a callback of the garbage collector may swallow one.
                _interrupt(self.thread)

    def _release(self) -> None:
        """Release the arguments, except for buffers to which MPI may still write."""
        from mpi4py import MPI

        self.function = None
        if self._comm is not None:
            self._comm.release_memory()
        # A persistent request that the user has started, and freed by a copy, MPI.Prequest(request), may seem active.
        # After an error its buffers are kept, because MPI may write to them.
        posted = [request for request in self.watch.posted if request and (request.started or not self._returned)]
        self.watch.posted = []
        for request in posted:
            if request.receives and not is_over(request):
                with contextlib.suppress(MPI.Exception):
                    request.Cancel()
        self._left = [request for request in posted if not (self._returned and is_over(request))]
        for request in self._left:
            keep_alive(request)
        if not (self._returned or self._had_buffer):
            from workbench.mpi import derived

            with contextlib.suppress(MPI.Exception, MemoryError):
                derived.detach_empty_buffer()

    def left_behind(self) -> protocol.Outcome:
        """Return whether messages of this call may be left on the communicator, where the next call would get them."""
        watch = self.watch
        pending = bool(self._left) or watch.maybe_modified or watch.unknown > 0 or watch.ended is not None
        messages = watch.messages + (self._comm.collective_sum if self._comm is not None else 0)
        return {"pending": pending, "messages": messages & KEYS}

    def settle(self, communicators: CommunicatorCache) -> bool:
        """Receive what is left on the communicators of a call that has succeeded; return whether nothing is left."""
        comm = self._comm
        if comm is None or self.watch.ended is not None:
            self._comm = None
            communicators.discard(self._serial)
            return False
        left, self._left = self._left, []
        if communicators.settle(self._serial, self.id.encode(), left, comm.derived, comm.collective_counts):
            self.free()
            return True
        self._comm = None
        return False

    def free(self) -> None:
        """Free the communicators that the function has derived; collective."""
        from mpi4py import MPI

        comm, self._comm = self._comm, None
        if comm is not None:
            with contextlib.suppress(MPI.Exception):
                comm.free_derived()

    def take_made(self) -> dict[Key, Any]:
        """Return the blocks to keep, by key, and forget them."""
        made, self.made = self.made, []
        return {meta.key: block for meta, block in made}

    def end(self, reason: str, call_later: Callable[[float, Callable[[], None]], Any]) -> None:
        """End the call: immediately in an MPI operation, soon in Python code, in C code if MPI supports that."""
        if self.watch.ended is not None:
            return
        self.watch.end(reason)
        self._ended_at = time.monotonic()
        used = self._cpu_seconds()
        call_later(_INTERRUPT_S, lambda: self._interrupt(used, call_later))
        spot = self._position()
        call_later(protocol.REVOKE_S, lambda: self._revoke(spot, call_later))

    def _interrupt(self, before: float, call_later: Callable[[float, Callable[[], None]], Any]) -> None:
        with self._lock:
            if not self.running:
                return
            used = self._cpu_seconds()
            # An operation of a `Communicator` checks for the end by itself, and must not be interrupted. Code that
            # sleeps in C would not notice an interrupt, which would stop traced code in all threads (CPython 3.11).
            later = self.watch.operation is not None or used == before or self._imports()
            if not later:
                self._interrupted = True
                _interrupt(self.thread)
        # Again, since code may return from MPI and never call MPI again, or may catch any error.
        call_later(_INTERRUPT_S if later else _REPEAT_S, lambda: self._interrupt(used, call_later))

    def _imports(self) -> bool:
        """Return whether the thread imports a module, and has time for that."""
        return time.monotonic() - self._ended_at < IMPORT_S and is_importing(self.thread or 0)

    def _cpu_seconds(self) -> float:
        """Return the CPU seconds of the thread; 0 before the thread runs the call."""
        return time.clock_gettime(time.pthread_getcpuclockid(self.thread)) if self.thread else 0.0

    def _revoke(self, before: Any, call_later: Callable[[float, Callable[[], None]], Any]) -> None:
        """Revoke the communicator if Python code has made no progress, so that C code probably waits in MPI."""
        from mpi4py import MPI

        if not self.running or self._comm is None or MPI.Query_thread() != MPI.THREAD_MULTIPLE:
            return  # this is the thread of the event loop, which may call MPI only at this level
        spot = self._position()
        if spot is not None and spot == before:
            self._comm.revoke()
        else:
            call_later(protocol.REVOKE_S, lambda: self._revoke(spot, call_later))

    def _position(self) -> Any:
        """Return the position of the code of the user; None while an operation may end by itself."""
        if self.watch.operation:
            return self.watch.count if time.monotonic() - self._ended_at > protocol.OPERATION_S else None
        frame = sys._current_frames().get(self.thread or 0)  # noqa: SLF001  (documented)
        return None if frame is None else (id(frame), frame.f_lasti)


def _key(call: str) -> int:
    """Return a number that identifies the communicator of a call: the same on all ranks."""
    return int(call, 16) & KEYS


def _release_imports() -> None:
    """Release the lock of all imports, which an interrupt in the middle of an import leaves with this thread."""
    with contextlib.suppress(RuntimeError):  # this thread does not hold the lock
        while True:
            _imp.release_lock()


def _interrupt(thread: int | None) -> None:
    """Raise `CallCancelled` in a thread, at the next instruction of Python."""
    if thread is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(CallCancelled))


def pack_value(value: Any, limit: int | None) -> protocol.Outcome:
    """Return the bytes of a value, and the value itself unless the bytes exceed the limit."""
    from distributed.protocol.serialize import to_serialize

    try:
        contents, nbytes = serialize.dumps_within(value, math.inf if limit is None else limit)
    except Exception as error:
        error.add_note("The return value cannot be sent to the notebook.")
        raise
    if contents is None:
        return {"nbytes": nbytes}
    # As separate frames: Dask copies the other frames of a message together, which have at most 4 GiB.
    return {"nbytes": nbytes, "value": contents if nbytes <= _LARGE else to_serialize(contents)}
