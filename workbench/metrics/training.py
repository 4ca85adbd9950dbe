"""How far fits and other iterations are: their events of Dask, and the records made from these."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from numbers import Real
from typing import Any

TOPIC = "workbench-fits"
"""Of the events: ``{"fit": identity, "name": text, "records": [{...}, ...]}``."""

RESERVED = frozenset(("fit", "name", "time", "step", "iteration", "pass"))
"""What a record may not call a number of its own."""

# What a record may call its step.
_STEP_NAMES = ("step", "iteration", "pass")
# What is kept, since it may come from anybody: numbers of a record, letters of a name, records of a fit, fits.
_NUMBERS_KEPT, _NAME_LENGTH, _RECORDS_KEPT, _FITS_KEPT = 32, 100, 1000, 50


def records(event: Mapping[str, Any], now: float) -> Iterator[dict[str, Any]]:
    """Return the records of an event as `workbench.metrics.update.Update.fits` has it.

    Parameters
    ----------
    now
        Seconds since the epoch.
    """
    try:
        for fields in event["records"]:
            step = next(fields[name] for name in _STEP_NAMES if name in fields)
            named = [(str(name)[:_NAME_LENGTH], value) for name, value in fields.items() if name not in RESERVED]
            numbers = {name: float(value) for name, value in named[:_NUMBERS_KEPT] if is_number(value)}
            identity = {"fit": str(event["fit"])[:_NAME_LENGTH], "name": str(event.get("name", "fit"))[:_NAME_LENGTH]}
            yield {**numbers, **identity, "time": now, "step": float(step)}
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, StopIteration):
        return  # not one of ours, though of our topic


def is_number(value: object) -> bool:
    """Return whether a value is a number, of Python or of NumPy; the truth is none."""
    return isinstance(value, Real) and not isinstance(value, bool)


class Fits:
    """The last records of the last fits. One whose steps go back is another run, and another fit."""

    def __init__(self) -> None:
        # Of each fit: its runs so far, and the last step.
        self._runs: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._fits: OrderedDict[str, deque[tuple[int, dict[str, Any]]]] = OrderedDict()

    def add(self, seq: int, record: Mapping[str, Any]) -> None:
        """Take a record, as `records` makes it, in a tick."""
        fit = record["fit"]
        run, last = self._runs.get(fit, (1, record["step"]))
        run += record["step"] < last
        self._runs[fit] = run, record["step"]
        name = fit if run == 1 else f"{fit}, run {run}"
        self._fits.setdefault(name, deque(maxlen=_RECORDS_KEPT)).append((seq, {**record, "fit": name}))
        for known, key in ((self._runs, fit), (self._fits, name)):
            known.move_to_end(key)
            if len(known) > _FITS_KEPT:
                known.popitem(last=False)

    def since(self, since: int, until: int) -> list[dict[str, Any]]:
        """Return the records after one tick and up to another, oldest first."""
        entries = [entry for of_fit in self._fits.values() for entry in of_fit if since < entry[0] <= until]
        return [record for _, record in sorted(entries, key=lambda entry: entry[0])]
