"""What is shown of a fit while it runs: lines, a bar, and the callback of the user."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tqdm.auto import tqdm

from workbench.ml.progress import Report


@contextmanager
def reporting(
    name: str, iterations: int, verbose: int, callback: Callable[[Mapping[str, float]], Any] | None
) -> Iterator[Report | None]:
    """Give what is to be handed the records of a fit; None if nobody wants them.

    Parameters
    ----------
    name
        What the bar is of.
    iterations
        At most.
    verbose
        0 for nothing, 1 for a bar, 2 for a line each iteration.
    callback
        Is given each record.
    """
    if not verbose and callback is None:
        yield None
        return
    with tqdm(total=iterations, desc=name, unit="iteration", disable=verbose != 1) as bar:

        def report(record: Mapping[str, float]) -> None:
            numbers = {key: f"{value:.6g}" for key, value in record.items() if key != "iteration"}
            bar.set_postfix(numbers, refresh=False)
            bar.update(record["iteration"] - bar.n)
            if verbose > 1:
                words = ", ".join(f"{key} {value}" for key, value in numbers.items())
                tqdm.write(f"{name}: iteration {record['iteration']:.0f}, {words}")
            if callback is not None:
                _call(callback, record)

        yield report
        # In a notebook a bar that is not full when it ends is one of something that has failed.
        bar.total = bar.n


def _call(callback: Callable[[Mapping[str, float]], Any], record: Mapping[str, float]) -> None:
    try:
        callback(record)
    except StopIteration as stop:
        # What calls it would take that for the end of something of its own.
        raise RuntimeError("the callback raised StopIteration; raise another error to end a fit") from stop
