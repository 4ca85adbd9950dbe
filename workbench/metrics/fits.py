"""How far fits and other iterations are: what they tell as events of Dask, and what becomes of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from numbers import Real
from typing import Any

TOPIC = "workbench-fits"
"""Of the events: ``{"fit": identity, "name": text, "records": [{...}, ...]}``."""

# What a record may call its step.
_STEPS = ("step", "iteration", "pass")
# Numbers of a record that are kept: it may come from anybody.
_MOST = 32


def records(event: Mapping[str, Any], now: float) -> Iterator[dict[str, Any]]:
    """Return what an event tells as `workbench.metrics.update.Update.fits` has it.

    Parameters
    ----------
    now
        Seconds since the epoch.
    """
    try:
        for its in event["records"]:
            step = next(its[name] for name in _STEPS if name in its)
            numbers = {
                str(name): float(value) for name, value in its.items() if name not in _STEPS and is_number(value)
            }
            who = {"fit": str(event["fit"]), "name": str(event.get("name", "fit")), "time": now, "step": float(step)}
            yield dict(list(numbers.items())[:_MOST]) | who
    except (KeyError, TypeError, ValueError, AttributeError, StopIteration):
        return  # not one of ours, though of our topic


def is_number(value: object) -> bool:
    """Tell whether a value is a number, of Python or of NumPy; the truth is none."""
    return isinstance(value, Real) and not isinstance(value, bool)
