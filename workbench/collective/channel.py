"""Events and answers between a running call on the ranks and the process that has made the call.

The head forwards both, and keeps neither. The result of a call and its events use different connections. So each rank
counts its events, and the client waits for all of them before it returns the result.
"""

from __future__ import annotations

import asyncio
import functools
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakKeyDictionary

from workbench.collective import protocol, serialize
from workbench.errors import CollectiveFailed, InvalidRequest
from workbench.session.current import current_worker

if TYPE_CHECKING:
    from distributed import Client

    from workbench.collective.request import Request
    from workbench.mpi.call_state import CallState

# Seconds between two checks of a rank that the call still runs.
_POLL_S = 0.05
# Seconds for the events of a call to arrive after its result.
_ARRIVAL_S = 10.0


@dataclass(frozen=True)
class Event:
    """A value that a rank has sent with `send` or `ask`, for the function `on_event` of a call."""

    rank: int
    """Number of the rank in the communicator of the call."""
    value: Any
    """The value."""
    _answer: Callable[[bytes], None] | None = field(default=None, repr=False)

    @property
    def is_question(self) -> bool:
        """Whether the rank has called `ask`, and waits for `answer`."""
        return self._answer is not None

    def answer(self, value: Any) -> None:
        """Send the value that `ask` returns on the rank, from any thread, now or later.

        Parameters
        ----------
        value : object
            Any object that can be pickled, of at most 1 MiB.

        Raises
        ------
        InvalidRequest
            If the rank does not wait for an answer, or the value is too large or cannot be pickled.
        """
        if self._answer is None:
            raise InvalidRequest("the rank has sent this event with send(), and waits for no answer. Use ask() there.")
        self._answer(_packed(value, "an answer"))


OnEvent = Callable[[Event], object]
"""The function of a user that receives the events of a call."""


def send(value: Any) -> None:
    """Send an event from a rank to the process that has made the call.

    Parameters
    ----------
    value : object
        Any object that can be pickled, of at most 1 MiB.

    Raises
    ------
    InvalidRequest
        If the value is too large or cannot be pickled.

    Notes
    -----
    The function `on_event` of the call receives the value as ``Event.value``. `send` does not wait. If the call has no
    `on_event`, and outside of calls, the event is dropped. The events of a rank arrive in their order, and all events
    of a call that succeeds before its result.
    The head forwards each event, so a rank should not send more than some hundred per second.

    Examples
    --------
    >>> @workbench.spmd
    ... def fit(comm):
    ...     for iteration in range(3):
    ...         if comm.rank == 0:
    ...             send({"iteration": iteration})
    >>> fit.submit(on_event=lambda event: print(event.value)).result()
    {'iteration': 0}
    {'iteration': 1}
    {'iteration': 2}
    [None, None, None, None]
    """
    if _current is not None:
        _current.send(value)


def ask(value: Any) -> Any:
    """Send an event from a rank, and wait for the ``Event.answer``.

    Parameters
    ----------
    value : object
        Any object that can be pickled, of at most 1 MiB.

    Returns
    -------
    object
        The answer.

    Raises
    ------
    InvalidRequest
        If the call has no `on_event`, this is no call, or the value is too large or cannot be pickled.

    Notes
    -----
    Other ranks do not wait. If all need the answer, one rank asks: ``comm.bcast(ask(x) if comm.rank == 0 else None)``.
    The wait ends with the call: after an error of `on_event`, with Ctrl-C, and at the time limit of the call.
    """
    if _current is None or _current.listener is None:
        raise InvalidRequest("ask() waits for an answer of on_event, and this is no call with on_event=.")
    return _current.ask(value)


def has_listener() -> bool:
    """Return whether this code runs in a call with `on_event`.

    Returns
    -------
    bool
        False outside of calls, and in a call whose events are dropped.
    """
    return _current is not None and _current.listener is not None


class Channel:
    """The events that a rank sends in a call, and the answers that it receives.

    Parameters
    ----------
    call
        Identity of the call.
    watch
        State of the call.
    """

    def __init__(self, call: str, watch: CallState) -> None:
        self._call, self._watch = call, watch
        self.rank = 0
        """Number of this rank in the communicator of the call."""
        self.listener: str | None = None
        """Identity of the client that receives the events; None if the call has no `on_event`."""
        self._lock = threading.Lock()
        self._answers: dict[int, queue.SimpleQueue[bytes]] = {}
        self.sent = 0
        """Number of events that were sent."""

    def send(self, value: Any, question: int | None = None) -> None:
        """Send an event; `question` is the number of a question."""
        worker = current_worker()
        if self.listener is None or worker is None:
            return
        message: protocol.Event = {
            "call": self._call,
            "listener": self.listener,
            "rank": self.rank,
            "question": question,
            "contents": _packed(value, "an event"),
        }
        with self._lock:  # a call may have several threads
            self.sent += 1
            worker.loop.add_callback(worker.batched_stream.send, {"op": protocol.EVENT, **message})

    def ask(self, value: Any) -> Any:
        """Send an event, and wait for the answer."""
        answer: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        number = id(answer)
        self._answers[number] = answer
        try:
            self.send(value, number)
            while True:
                try:
                    return serialize.loads(answer.get(timeout=_POLL_S))
                except queue.Empty:
                    self._watch.check()
        finally:
            del self._answers[number]

    def take(self, question: int, contents: bytes) -> None:
        """Pass an answer to the thread that waits for it. On the event loop of the worker."""
        if waiting := self._answers.get(question):
            waiting.put(contents)


# The channel of the call that runs in this process.
_current: Channel | None = None


def enter(channel: Channel, rank: int) -> None:
    """Make this the channel of `send` and `ask`; `rank` is the number of this rank in the communicator."""
    global _current  # noqa: PLW0603  (one call runs in a process)
    _current = channel
    channel.rank = rank


def leave() -> None:
    """End the effect of `enter`: a thread that a call has left sends no more."""
    global _current  # noqa: PLW0603
    _current = None


# The calls of each client that receive events, by identity; a client has one handler for a topic.
_listeners: WeakKeyDictionary[Client, dict[str, Listener]] = WeakKeyDictionary()


class Listener:
    """Receives the events of a call in this context, on the event loop of the client.

    Parameters
    ----------
    request
        The request of the call.
    deliver
        Has another thread call a function that calls `on_event`.
    """

    def __init__(self, request: Request, deliver: Callable[[Callable[[], object]], None]) -> None:
        self._request, self._deliver = request, deliver
        self._received, self._expected = 0, 0
        self._complete = asyncio.Event()

    def __enter__(self) -> Self:
        client = self._request.client
        if self._request.on_event is not None:
            if client not in _listeners:
                _listeners[client] = {}
                # Only for the handler: the head sends an event to the client of the call, and publishes none.
                client.subscribe_topic(protocol.EVENT, functools.partial(_dispatch, _listeners[client]))
            _listeners[client][self._request.call] = self
        return self

    def __exit__(self, *_: object) -> None:
        _listeners.get(self._request.client, {}).pop(self._request.call, None)

    async def wait(self, expected: int) -> None:
        """Wait until `expected` events were received.

        Raises
        ------
        CollectiveFailed
            If the events do not arrive.
        """
        self._expected = expected
        if self._received >= expected:
            return
        try:
            await asyncio.wait_for(self._complete.wait(), _ARRIVAL_S)
        except TimeoutError:
            raise CollectiveFailed(
                f"{self._request.name} has ended, but {expected - self._received} of its {expected} events have not "
                f"arrived within {_ARRIVAL_S:g} s, and its result is dropped."
            ) from None

    def take(self, event: protocol.Event, address: str) -> None:
        """Receive an event of the rank at an address."""
        self._received += 1
        self._deliver(functools.partial(self._handle, event, address))
        if self._received == self._expected:
            self._complete.set()

    def _handle(self, event: protocol.Event, address: str) -> None:
        try:
            value = serialize.loads(event["contents"])
        except Exception as error:
            raise CollectiveFailed(
                f"an event of {self._request.name} from its rank {event['rank']} cannot be unpickled here: "
                f"{type(error).__name__}: {error}"
            ) from error
        answer = None
        if event["question"] is not None:
            answer = functools.partial(self._answer, address, event["question"])
        if self._request.on_event is not None:
            self._request.on_event(Event(event["rank"], value, answer))

    def _answer(self, address: str, question: int, contents: bytes) -> None:
        client, call = self._request.client, self._request.call
        message: protocol.Answered = {"call": call, "address": address, "question": question, "contents": contents}
        loop: Any = client.loop
        loop.add_callback(client._send_to_scheduler, {"op": protocol.ANSWER, **message})  # noqa: SLF001


def _dispatch(listeners: Mapping[str, Listener], event: tuple[str, protocol.Event]) -> None:
    address, message = event
    if listener := listeners.get(message["call"]):
        listener.take(message, address)


def _packed(value: Any, what: str) -> bytes:
    from dask.utils import format_bytes

    try:
        contents, nbytes = serialize.dumps_within(value, protocol.LARGE)
    except Exception as error:
        raise InvalidRequest(
            f"the {type(value).__name__} cannot be sent as {what}: {type(error).__name__}: {error}. The value must be "
            "picklable."
        ) from error
    if contents is None:
        raise InvalidRequest(
            f"the value has {format_bytes(nbytes)}, and {what} has at most {format_bytes(protocol.LARGE)}. Return a "
            "larger value, or write the value to a file and send its path."
        )
    return contents
