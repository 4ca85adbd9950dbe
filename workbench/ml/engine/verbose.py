"""What is shown of a fit while it runs: lines, a bar, and the callback of the user."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tqdm import TqdmWarning

from workbench.ml.engine.progress import Report

with warnings.catch_warnings():
    # A notebook without ipywidgets gets a bar of text, which nobody has to be warned of.
    warnings.simplefilter("ignore", TqdmWarning)
    from tqdm.auto import tqdm

Callback = Callable[[Mapping[str, Any]], Any]
"""Is given the numbers of an iteration, or of a pass over the data, by their names."""


# What is counted, as a bar has it; how many numbers of a record it shows.
_UNITS, _ON_BAR = {"iteration": "it", "pass": "pass"}, 2


@contextmanager
def reporting(name: str, iterations: int | None, verbose: int, callback: Callback | None) -> Iterator[Report | None]:
    """Give what is to be handed the records of a fit; None if nobody wants them.

    Parameters
    ----------
    name
        What the bar is of.
    iterations
        At most; None for a fit that tells of its passes over the data.
    verbose
        0 for nothing, 1 for a bar, 2 for a line each record.
    callback
        Is given each record.
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
        # In a notebook a bar that is not full when it ends is one of something that has failed.
        bar.total = bar.n


def _in_short(record: Mapping[str, Any], unit: str) -> dict[str, str]:
    """Return what a bar has room for, in a notebook beside the bar itself."""
    return {key: _word(record[key], 3) for key in [key for key in record if key != unit][:_ON_BAR]}


def _word(value: Any, digits: int) -> str:
    return value if isinstance(value, str) else f"{value:.{digits}g}"


def _call(callback: Callback, record: Mapping[str, Any]) -> None:
    try:
        callback(record)
    except StopIteration as stop:
        # What calls it would take that for the end of something of its own.
        raise RuntimeError("the callback raised StopIteration; raise another error to end a fit") from stop
