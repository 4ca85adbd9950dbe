"""Output of a fit while it runs: lines, a progress bar, and the callback of the user."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tqdm import TqdmWarning

from workbench.ml.engine.progress import Report

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
