"""Progress of a fit, from the process of its algorithm to the process that waits for the fit, and to dashboards."""

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
"""Receives the numbers of an iteration, or of a pass over the data, by name."""

# Seconds between two messages, with a listener and for dashboards only: an iteration may be shorter than a message.
_LISTENER_INTERVAL_S, _DASHBOARD_INTERVAL_S = 0.1, 1.0

_Take = Callable[[Sequence[Mapping[str, Any]]], None]
# The listeners of each client, by fit; a client has one handler for a topic.
_listeners: WeakKeyDictionary[Client, dict[str, _Take]] = WeakKeyDictionary()


class Sender:
    """Sends records as Dask events, several together.

    Parameters
    ----------
    fit, name
        Identity and name of the fit.
    send
        Sends an event: `workbench.metrics.report.tell`, or `distributed.Client.log_event`.
    awaited
        Whether a `Listener` waits for the records.
    """

    def __init__(self, fit: str, name: str, send: Callable[[str, Any], Any], *, awaited: bool) -> None:
        self._fit, self._name, self._send = fit, name, send
        self._interval = _LISTENER_INTERVAL_S if awaited else _DASHBOARD_INTERVAL_S
        self.records: list[dict[str, Any]] = []
        """All records so far."""
        self._sent, self._sent_at = 0, time.monotonic()

    def __call__(self, record: Mapping[str, Any]) -> None:
        """Take a record."""
        self.records.append(dict(record))
        if time.monotonic() - self._sent_at >= self._interval:
            self.flush()

    def flush(self) -> None:
        """Send the records that were not sent yet."""
        if new := self.records[self._sent :]:
            self._send(TOPIC, {"fit": self._fit, "name": self._name, "records": new})
            self._sent, self._sent_at = len(self.records), time.monotonic()


class Listener:
    """Receives the records of a `Sender`, in the thread that waits for the result.

    Parameters
    ----------
    client
        The client of the fit.
    fit
        Identity of the fit.
    report
        Receives each record.
    """

    def __init__(self, client: Client, fit: str, report: Report) -> None:
        self.fit = fit
        self._client, self._report = client, report
        self._arrived: queue.SimpleQueue[Sequence[Mapping[str, Any]]] = queue.SimpleQueue()
        self._number = 0

    def listen(self, call: PendingCall) -> None:
        """Report records while a thread waits for the result of a call."""

        def take(records: Sequence[Mapping[str, Any]]) -> None:
            self._arrived.put(records)
            call.tell(self._next)

        if self._client not in _listeners:
            _listeners[self._client] = {}
            self._client.subscribe_topic(TOPIC, functools.partial(_hand_out, _listeners[self._client]))
        _listeners[self._client][self.fit] = take

    def finish(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Report the records that were not received yet, from all records."""
        self._hand_on(records[self._number :])

    def close(self) -> None:
        """Stop listening."""
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
