"""Progress of a fit: from the process of its algorithm to dashboards, to lines of output and to the user's callback."""

from __future__ import annotations

import functools
import queue
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from tqdm import TqdmWarning

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


with warnings.catch_warnings():
    # A notebook without ipywidgets gets a bar of text, which needs no warning.
    warnings.simplefilter("ignore", TqdmWarning)
    from tqdm.auto import tqdm

Callback = Callable[[Mapping[str, Any]], Any]
"""Receives the numbers of an iteration, or of a pass over the data, by name."""

# Names of the units on a bar, and how many numbers of a record the bar shows.
_UNITS, _ON_BAR = {"iteration": "it", "pass": "pass"}, 2


@contextmanager
def reporting(name: str, iterations: int | None, verbose: int, callback: Callback | None) -> Iterator[Report | None]:
    """Yield the function that receives the records of a fit; None without output and callback.

    Parameters
    ----------
    name
        Title of the bar.
    iterations
        Maximum number of iterations; None for a fit that reports passes over the data.
    verbose
        0 for nothing, 1 for a bar, 2 for a line per record.
    callback
        Receives each record.
    """
    if not verbose and callback is None:
        yield None
        return
    unit = "pass" if iterations is None else "iteration"
    with tqdm(total=iterations, desc=name, unit=_UNITS[unit], disable=verbose != 1) as bar:

        def report(record: Mapping[str, Any]) -> None:
            bar.set_postfix(_in_short(record, unit), refresh=False)
            bar.update(record[unit] - bar.n)
            if verbose > 1:
                values = {key: _word(value, 6) for key, value in record.items()}
                step = "iteration" if "iteration" in values else "pass"
                fields = [f"{step} {values.pop(step)}", *(f"{key} {word}" for key, word in values.items())]
                tqdm.write(f"{name}: {', '.join(fields)}")
            if callback is not None:
                _call(callback, record)

        yield report
        # A notebook shows an incomplete bar as failed.
        bar.total = bar.n


def _in_short(record: Mapping[str, Any], unit: str) -> dict[str, str]:
    """Return the numbers for which a bar has room."""
    return {key: _word(record[key], 3) for key in [key for key in record if key != unit][:_ON_BAR]}


def _word(value: Any, digits: int) -> str:
    return value if isinstance(value, str) else f"{value:.{digits}g}"


def _call(callback: Callback, record: Mapping[str, Any]) -> None:
    try:
        callback(record)
    except StopIteration as stop:
        # The caller would take the exception for the end of its own iteration.
        raise RuntimeError("the callback raised StopIteration. Raise another error to end a fit.") from stop
