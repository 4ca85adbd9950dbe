"""Progress of fits and other iterations: their Dask events, and the records made from these."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from numbers import Real
from typing import Any

TOPIC = "workbench-fits"
"""Topic of the events ``{"fit": identity, "name": text, "records": [{...}, ...]}``."""

RESERVED = frozenset(("fit", "name", "time", "step", "iteration", "pass"))
"""Names that are not valid for a value."""

ALL_RECORDS_KEPT = 50_000
"""Maximum of records of all fits together: each rank that reports has a separate fit."""

_STEP_NAMES = ("step", "iteration", "pass")
# Any code may send events, so these are limited, too: numbers of a record, letters of a name, records of a fit.
_NUMBERS_KEPT, _NAME_LENGTH, _RECORDS_KEPT = 32, 100, 1000


def records(event: Mapping[str, Any], now: float) -> Iterator[dict[str, Any]]:
    """Return the records of an event in the form of `workbench.metrics.update.Update.fits`, with the time `now`."""
    try:
        for fields in event["records"]:
            step = next(fields[name] for name in _STEP_NAMES if name in fields)
            named = [(str(name)[:_NAME_LENGTH], value) for name, value in fields.items() if name not in RESERVED]
            numbers = {name: float(value) for name, value in named[:_NUMBERS_KEPT] if is_number(value)}
            identity = {"fit": str(event["fit"])[:_NAME_LENGTH], "name": str(event.get("name", "fit"))[:_NAME_LENGTH]}
            yield {**numbers, **identity, "time": now, "step": float(step)}
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, StopIteration):
        return  # an event of other code on this topic


def is_number(value: object) -> bool:
    """Return whether a value is a number, of Python or of NumPy, and no bool."""
    return isinstance(value, Real) and not isinstance(value, bool)


class Fits:
    """The latest records of the latest fits; when the steps of a fit go back, another run begins, a separate fit."""

    def __init__(self) -> None:
        # By fit: the number of runs so far, and the last step.
        self._runs: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._fits: OrderedDict[str, deque[tuple[int, dict[str, Any]]]] = OrderedDict()
        self._number_of_records = 0

    def add(self, seq: int, record: Mapping[str, Any]) -> None:
        """Add a record of `records` to the tick `seq`."""
        fit = record["fit"]
        run, last = self._runs.get(fit, (1, record["step"]))
        run += record["step"] < last
        self._runs[fit] = run, record["step"]
        name = fit if run == 1 else f"{fit}, run {run}"
        entries = self._fits.setdefault(name, deque(maxlen=_RECORDS_KEPT))
        self._number_of_records += len(entries) < _RECORDS_KEPT
        entries.append((seq, {**record, "fit": name}))
        self._runs.move_to_end(fit)
        self._fits.move_to_end(name)
        while self._number_of_records > ALL_RECORDS_KEPT:
            _, dropped = self._fits.popitem(last=False)
            self._number_of_records -= len(dropped)
        if len(self._runs) > ALL_RECORDS_KEPT:
            self._runs.popitem(last=False)

    def since(self, since: int, until: int) -> list[dict[str, Any]]:
        """Return the records after the tick `since`, up to the tick `until`, oldest first."""
        entries = [entry for fit in self._fits.values() for entry in fit if since < entry[0] <= until]
        return [record for _, record in sorted(entries, key=lambda entry: entry[0])]
