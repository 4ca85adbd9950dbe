"""Progress of a fit: from the process of its algorithm to dashboards, to lines of output and to the user's callback."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tqdm import TqdmWarning

from workbench.extension import Event, has_listener, send
from workbench.metrics.training import TOPIC

Report = Callable[[Mapping[str, Any]], None]
"""Receives the numbers of an iteration, or of a pass over the data, by name."""

# Seconds between two messages, with a listener and for dashboards only: an iteration may be shorter than a message.
_LISTENER_INTERVAL_S, _DASHBOARD_INTERVAL_S = 0.1, 1.0


class Sender:
    """Sends records, several together: as Dask events to dashboards, and as events of a call to its process.

    Parameters
    ----------
    fit, name
        Identity and name of the fit.
    log
        Logs a Dask event: `workbench.metrics.report.tell`, or `distributed.Client.log_event`.
    """

    def __init__(self, fit: str, name: str, log: Callable[[str, Any], Any]) -> None:
        self._fit, self._name, self._log = fit, name, log
        self._interval = _LISTENER_INTERVAL_S if has_listener() else _DASHBOARD_INTERVAL_S
        self._records: list[dict[str, Any]] = []
        self._sent_at = time.monotonic()

    def __call__(self, record: Mapping[str, Any]) -> None:
        """Take a record."""
        self._records.append(dict(record))
        if time.monotonic() - self._sent_at >= self._interval:
            self.flush()

    def flush(self) -> None:
        """Send the records that were not sent yet."""
        if not self._records:
            return
        self._log(TOPIC, {"fit": self._fit, "name": self._name, "records": self._records})
        send(self._records)
        self._records, self._sent_at = [], time.monotonic()


def receiver(report: Report) -> Callable[[Event], None]:
    """Return the function `on_event` of a call with a `Sender`, which reports each record."""

    def on_event(event: Event) -> None:
        for record in event.value:
            report(record)

    return on_event


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
        # The caller would take the exception for the end of the caller's iteration.
        raise RuntimeError("the callback raised StopIteration. Raise another error to end a fit.") from stop
