"""A call of a client: the inputs, the request to the head, Ctrl-C, and the result."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from workbench.collective import broadcast, channel, protocol, serialize
from workbench.collective.operation import DisjointLock
from workbench.collective.protocol import Answer
from workbench.collective.request import Request
from workbench.errors import CollectiveFailed, CollectiveTimeout, HeadUnreachable, WorkbenchError
from workbench.placement import from_results
from workbench.placement.pinning import wait_computed
from workbench.positions import StallDetector, label, labeled
from workbench.session import current
from workbench.session.head_client import ClientHead

if TYPE_CHECKING:
    from distributed import Client


async def decode(request: Request, answer: Answer) -> Any:
    """Return the result of a call from the answer of the head.

    Raises
    ------
    Exception
        The error of the rank that failed, with the traceback and a note that names the rank.
    CollectiveFailed
        If the value of a rank cannot be unpickled here.
    PlacementError
        If the blocks of the ranks do not fit together. The ranks then keep no block.
    """
    serialize.raise_failure(answer, request.name)
    if "values" in answer:
        values = [_value(request, rank, contents) for rank, contents in enumerate(answer["values"])]
        return values[0] if request.result == "root" else values
    blocks = [*map(serialize.loads, answer["blocks"])]
    return await from_results.collections(request.client, blocks, answer["addresses"])


def _value(request: Request, rank: int, contents: bytes) -> Any:
    try:
        return serialize.loads(contents)
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"
        words = f"the result of {request.name} on its rank {rank} cannot be unpickled here: {cause}"
        raise CollectiveFailed(words, ranks=(rank,)) from error


# Seconds between two checks that the client is open.
_POLL_S = 5.0

# Calls of one client run in their order; calls with ``ranks=`` and without a common rank run at the same time. Used on
# the event loop of the client.
_turns: WeakKeyDictionary[Client, DisjointLock] = WeakKeyDictionary()


class _CallFuture(Future[Any]):
    """The future of a call, whose callbacks run one after another, in their order, in a thread of this future.

    On the event loop of the client a callback could make no call, and would delay all work of the client. The thread
    exists while callbacks wait or run. The thread is no daemon: at exit the interpreter waits for the callbacks of the
    calls that have ended. Callbacks of calls that still run then may not run.
    """

    def __init__(self) -> None:
        super().__init__()
        self._callbacks: deque[Callable[[Future[Any]], object]] = deque()
        self._callbacks_lock, self._callbacks_run = threading.Lock(), False

    def add_done_callback(self, fn: Callable[[Future[Any]], object]) -> None:
        # A reference from the callback to this object would be a cycle, and would keep the result.
        super().add_done_callback(functools.partial(_CallFuture.call_later, fn=fn))

    def call_later(self, fn: Callable[[Future[Any]], object]) -> None:
        """Call a function in the thread of the callbacks, after the functions before."""
        with self._callbacks_lock:
            self._callbacks.append(fn)
            if self._callbacks_run:
                return
            self._callbacks_run = True
        threading.Thread(target=self._run_callbacks, name="call-done", daemon=False).start()

    def _run_callbacks(self) -> None:
        while True:
            with self._callbacks_lock:
                if not self._callbacks:
                    self._callbacks_run = False
                    return
                fn = self._callbacks.popleft()
            try:
                fn(self)
            except BaseException:  # the next callbacks run also after SystemExit
                logging.getLogger("concurrent.futures").exception("exception calling callback for %r", self)

    def add_brief_callback(self, fn: Callable[[Future[Any]], object]) -> None:
        """Have the thread that ends the call run a function that does not wait."""
        super().add_done_callback(fn)


class PendingCall:
    """A call whose result has not arrived. `start` or `result` begins the call.

    Attributes
    ----------
    future : concurrent.futures.Future
        Future of the result. ``cancel()`` ends the call. Callbacks run in a thread, in their order.
    """

    def __init__(self, request: Request) -> None:
        self.future = _CallFuture()
        self._request = request
        self._head = ClientHead(request.client, request.name)
        self._loop: asyncio.AbstractEventLoop = request.client.loop.asyncio_loop  # type: ignore[union-attr]
        self._started = self._sent = self._waits = False
        # The error of `on_event`, which ends the call.
        self._failure: BaseException | None = None
        self._callbacks: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        callbacks = self._callbacks  # this object would be a cycle, and would keep the broadcast arguments
        self.future.add_brief_callback(lambda _: callbacks.put(None))

    @property
    def client(self) -> Client:
        """The client of the call."""
        return self._request.client

    def start(self) -> Future[Any]:
        """Begin the call without a wait, and return the future of the result."""
        # The future was created before, since Ctrl-C can arrive while this thread hands the call to the event loop.
        self._started = True
        self._loop.call_soon_threadsafe(self._start)
        return self.future

    def _start(self) -> None:
        if self.future.cancelled():
            self.future.set_running_or_notify_cancel()
            return
        loop, task = self._loop, self._loop.create_task(self._run())

        def cancel(future: Future[Any]) -> None:  # without a reference to this object, as above
            if future.cancelled() and not loop.is_closed():
                loop.call_soon_threadsafe(task.cancel)

        self.future.add_brief_callback(cancel)
        task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            self.future.cancel()
        if self._request.on_event is None or self._waits:
            self._set_outcome(task, self.future)
        else:  # after the events
            self.future.call_later(functools.partial(self._set_outcome, task))

    def _set_outcome(self, task: asyncio.Task[Any], future: Future[Any]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        error = task.exception()
        if self._failure is not None:
            if error is not None:
                self._failure.add_note(str(error))
            future.set_exception(self._failure)
        elif error is not None:
            future.set_exception(error)
        else:
            future.set_result(task.result())

    def _deliver(self, handle: Callable[[], object]) -> None:
        """Have the thread that waits for the result, or else the thread of the callbacks, handle an event."""
        if self._waits:
            self._callbacks.put(handle)
        else:
            self.future.call_later(functools.partial(self._handle, handle))

    def _handle(self, handle: Callable[[], object], future: Future[Any]) -> None:
        if self._failure is not None or future.done():
            return
        try:
            handle()
        except BaseException as error:  # noqa: BLE001  (the error of the future)
            self._failure = error
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._cancel)

    def result(self) -> Any:
        """Wait for the result, and return the result; handle the events meanwhile.

        Ctrl-C and an error of `on_event` end the call.
        """
        self._waits = True
        try:
            if not self._started:
                self.start()
            while (callback := self._next()) is not None:
                callback()
        except HeadUnreachable:
            raise
        except BaseException as interrupt:
            if (note := self._interrupt()) is not None:
                interrupt.add_note(note)
            raise
        error = self.future.exception()
        if error is None:
            return self.future.result()
        try:
            # The frames between the rank and this process do not help a reader of the traceback.
            raise serialize.strip_internal_frames(error)
        finally:
            # The traceback of the error contains this frame. IPython shows a frame only if its arguments have a value.
            self = error = None  # type: ignore[assignment]  # noqa: PLW0642  (as in concurrent.futures)

    def _next(self) -> Callable[[], object] | None:
        """Return the next function to call; None at the end."""
        while True:
            try:
                return self._callbacks.get(timeout=_POLL_S)
            except queue.Empty:
                # If the loop of the client has ended, no other event reports that.
                if self._loop.is_closed() or not self._loop.is_running():
                    raise self._head.unreachable(ConnectionError()) from None

    def _interrupt(self) -> str | None:
        """End the call; return a note for the interrupt, or None."""
        if not self._sent:
            self.future.cancel()
            return None
        self._loop.call_soon_threadsafe(self._cancel)
        try:
            self.future.result(protocol.CLIENT_CALL_END_S)
        except TimeoutError:
            self.future.cancel()
            return "The head has not reported whether the call has ended on all ranks."
        except (Exception, CancelledError) as error:  # noqa: BLE001  (most often the call has failed before)
            return str(error)
        return None

    def _cancel(self) -> None:
        request = self._request
        request.client._send_to_scheduler({"op": protocol.CANCEL, "call": request.call})  # noqa: SLF001

    async def _run(self) -> Any:
        client = self._request.client
        async with _turns.setdefault(client, DisjointLock()).held(self._request.message["ranks"]):
            left = await self._computed()
            watching = asyncio.ensure_future(self._watch())
            try:
                with channel.Listener(self._request, self._deliver) as listener:
                    answer = await self._send(left)
                    await listener.wait(answer.get("events", 0))
            except asyncio.CancelledError:
                self._cancel()
                raise
            finally:
                watching.cancel()
        if printed := answer.get("printed"):
            self._show(functools.partial(show_text, printed_text(printed)))
        return await decode(self._request, answer)

    async def _computed(self) -> float | None:
        """Wait until the arguments are computed; return the remaining seconds for the call."""
        allowed, began = self._request.message["timeout"], self._loop.time()
        try:
            async with asyncio.timeout(allowed) as limit:
                await self._gather_inputs()
        except TimeoutError:
            if not limit.expired():
                raise
            raise CollectiveTimeout(
                f"the arguments of {self._request.name} were not computed within {allowed:g} s, and the call had not "
                "begun. Allow more time with timeout=."
            ) from None
        return None if allowed is None else max(0.0, allowed - (self._loop.time() - began))

    async def _gather_inputs(self) -> None:
        for column, value in self._request.large.items():
            # Without a timeout of the broadcast: the time of earlier calls counts as time of this call.
            future = await broadcast.send(self._request.client, value, math.inf)
            self._request.needs.append(future)
            for keys in self._request.keys:
                keys[column] = future.key
        self._request.large.clear()
        await wait_computed(self._request.needs, f"an argument of {self._request.name}")

    async def _send(self, timeout: float | None) -> protocol.Answer:
        request = self._request
        self._sent = True
        try:
            message: protocol.Call = {**request.message, "origin": current.cell_number(), "timeout": timeout}
            answer: protocol.Answer = await self._head.begin(protocol.CALL, **message)
        except WorkbenchError as error:
            raise error.with_traceback(None) from None  # the message has all facts
        return answer

    async def _watch(self) -> None:
        """Print the positions of the ranks when the call makes no progress for some time."""
        patience, time = self._request.patience, self._loop.time
        stall, printed = StallDetector(patience), time()
        while True:
            await asyncio.sleep(stall.interval)
            with contextlib.suppress(OSError):
                running = await self._head.call(protocol.RUNNING, call=self._request.call, patience=patience)
                if self._request.call in running:
                    printed = time()
                    name, places = running[self._request.call]
                    if report := stall.report(places):
                        self._print(f"{name}: {report}")
                elif running and time() - printed >= patience:
                    printed = time()
                    others = ", ".join(other for other, _ in running.values())
                    self._print(f"{self._request.name} waits for the end of {others}")

    def _print(self, line: str) -> None:
        # In the thread that waits, so that the line appears below the cell of the call.
        self._callbacks.put(functools.partial(show_text, f"{line}\n"))

    def _show(self, write: Callable[[], object]) -> None:
        if self._waits:
            self._callbacks.put(write)
        else:
            write()


def show_text(text: str) -> None:
    """Print a text about a call as far as possible: the call does not fail because of a stream."""
    with contextlib.suppress(Exception):  # a stream of the user, or one that is closed
        try:
            print(text, end="", flush=True)  # noqa: T201  (for the user)
        except UnicodeEncodeError as error:
            print(text.encode(error.encoding, "backslashreplace").decode(error.encoding), end="", flush=True)  # noqa: T201


def printed_text(printed: Sequence[tuple[int, str, int]]) -> str:
    r"""Return the output of the ranks of a call, as `Answer` has it, as text: equal output of several ranks once.

    Examples
    --------
    >>> printed_text([(0, "hello\n", 0), (1, "hello\n", 0), (2, "", 3)])
    'ranks 0-1: hello\nrank 2: 3 more bytes of output are only in its log: cluster.logs(2)\n'
    """
    alike: dict[str, list[int]] = {}
    for rank, text, _ in printed:
        if text:
            alike.setdefault(text, []).append(rank)
    lines = [labeled(label(ranks), text) for text, ranks in alike.items()]
    lines += [
        f"rank {rank}: {cut:,} more bytes of output are only in its log: cluster.logs({rank})\n"
        for rank, _, cut in printed
        if cut
    ]
    return "".join(lines)
