"""How far a fit is, from rank 0, where its algorithm runs, to the process that waits for it."""

from __future__ import annotations

import functools
import queue
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from workbench.rank import events

if TYPE_CHECKING:
    from distributed import Client

    from workbench.calling.call import Call

Report = Callable[[Mapping[str, float]], None]
"""Is given the numbers of an iteration by their names."""

TOPIC = "workbench-fits"
"""Of the events that carry records: ``{"fit": identity, "records": [...]}``."""

# Seconds between two messages of rank 0: iterations may take less than a message does.
_OFTEN = 0.1
# Seconds that the last message may come after the result.
_LAST = 2.0

_Take = Callable[[Sequence[Mapping[str, float]]], None]
# By client, who listens to which fit; a client has one handler for a topic.
_listeners: WeakKeyDictionary[Client, dict[str, _Take]] = WeakKeyDictionary()


class Sender:
    """Sends records from rank 0, several at once.

    Parameters
    ----------
    fit
        Identity of the fit.
    """

    def __init__(self, fit: str) -> None:
        self._fit = fit
        self._kept: list[dict[str, float]] = []
        self._sent = time.monotonic()
        self.number = 0
        """Records so far."""

    def __call__(self, record: Mapping[str, float]) -> None:
        """Take a record."""
        self._kept.append(dict(record))
        self.number += 1
        if time.monotonic() - self._sent >= _OFTEN:
            self.flush()

    def flush(self) -> None:
        """Send what was kept."""
        if self._kept:
            events.tell(TOPIC, {"fit": self._fit, "records": self._kept})
        self._kept, self._sent = [], time.monotonic()


class Listener:
    """Hands the records of a `Sender` on, in the thread that waits for the result.

    Parameters
    ----------
    client
        The client that asks for the fit.
    report
        Is given each record.
    """

    def __init__(self, client: Client, report: Report) -> None:
        self.fit = uuid.uuid4().hex
        self._client, self._report = client, report
        self._arrived: queue.SimpleQueue[Sequence[Mapping[str, float]]] = queue.SimpleQueue()
        self._number = 0

    def listen(self, call: Call) -> None:
        """Hand records on while somebody waits for the result of a call."""

        def take(records: Sequence[Mapping[str, float]]) -> None:
            self._arrived.put(records)
            call.tell(functools.partial(self._next, 0.0))

        if self._client not in _listeners:
            _listeners[self._client] = {}
            self._client.subscribe_topic(TOPIC, functools.partial(_hand_out, _listeners[self._client]))
        _listeners[self._client][self.fit] = take

    def finish(self, number: int) -> None:
        """Hand on the records that are still on their way, until there were so many."""
        deadline = time.monotonic() + _LAST
        while self._number < number and (left := deadline - time.monotonic()) > 0:
            self._next(left)

    def close(self) -> None:
        """Listen no more."""
        _listeners.get(self._client, {}).pop(self.fit, None)

    def _next(self, timeout: float) -> None:
        try:
            records = self._arrived.get(timeout=timeout) if timeout else self._arrived.get_nowait()
        except queue.Empty:
            return
        for record in records:
            self._number += 1
            self._report(record)


def _hand_out(takes: Mapping[str, _Take], event: tuple[float, dict[str, Any]]) -> None:
    if take := takes.get(event[1]["fit"]):
        take(event[1]["records"])
