"""How far a fit is, from where its algorithm runs to whoever looks: the process that waits for it, dashboards."""

from __future__ import annotations

import functools
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from workbench.metrics.training import TOPIC

if TYPE_CHECKING:
    from distributed import Client

    from workbench.collective.client import PendingCall

Report = Callable[[Mapping[str, Any]], None]
"""Is given the numbers of an iteration, or of a pass over the data, by their names."""

# Seconds between two messages, where somebody waits for them and where only a dashboard may show them: iterations may
# take less than a message does.
_AWAITED, _OTHERWISE = 0.1, 1.0

_Take = Callable[[Sequence[Mapping[str, Any]]], None]
# By client, who listens to which fit; a client has one handler for a topic.
_listeners: WeakKeyDictionary[Client, dict[str, _Take]] = WeakKeyDictionary()


class Sender:
    """Sends records as events of Dask, several at once.

    Parameters
    ----------
    fit, name
        Identity of the fit, and what it is called.
    tell
        Sends an event: `workbench.metrics.report.tell`, or `distributed.Client.log_event`.
    awaited
        Whether a `Listener` waits for the records.
    """

    def __init__(self, fit: str, name: str, send: Callable[[str, Any], Any], *, awaited: bool) -> None:
        self._fit, self._name, self._tell = fit, name, send
        self._interval = _AWAITED if awaited else _OTHERWISE
        self.records: list[dict[str, Any]] = []
        """All so far."""
        self._told, self._sent = 0, time.monotonic()

    def __call__(self, record: Mapping[str, Any]) -> None:
        """Take a record."""
        self.records.append(dict(record))
        if time.monotonic() - self._sent >= self._interval:
            self.flush()

    def flush(self) -> None:
        """Send those that were not sent yet."""
        if new := self.records[self._told :]:
            self._tell(TOPIC, {"fit": self._fit, "name": self._name, "records": new})
            self._told, self._sent = len(self.records), time.monotonic()


class Listener:
    """Hands the records of a `Sender` on, in the thread that waits for the result.

    Parameters
    ----------
    client
        The client that asks for the fit.
    fit
        Identity of the fit.
    report
        Is given each record.
    """

    def __init__(self, client: Client, fit: str, report: Report) -> None:
        self.fit = fit
        self._client, self._report = client, report
        self._arrived: queue.SimpleQueue[Sequence[Mapping[str, Any]]] = queue.SimpleQueue()
        self._number = 0

    def listen(self, call: PendingCall) -> None:
        """Hand records on while somebody waits for the result of a call."""

        def take(records: Sequence[Mapping[str, Any]]) -> None:
            self._arrived.put(records)
            call.tell(self._next)

        if self._client not in _listeners:
            _listeners[self._client] = {}
            self._client.subscribe_topic(TOPIC, functools.partial(_hand_out, _listeners[self._client]))
        _listeners[self._client][self.fit] = take

    def finish(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Hand on those of all records that have not come yet."""
        self._hand_on(records[self._number :])

    def close(self) -> None:
        """Listen no more."""
        _listeners.get(self._client, {}).pop(self.fit, None)

    def _next(self) -> None:
        self._hand_on(self._arrived.get_nowait())

    def _hand_on(self, records: Sequence[Mapping[str, Any]]) -> None:
        for record in records:
            self._number += 1
            self._report(record)


def _hand_out(takes: Mapping[str, _Take], event: tuple[float, dict[str, Any]]) -> None:
    if take := takes.get(event[1]["fit"]):
        take(event[1]["records"])
