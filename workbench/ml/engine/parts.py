"""The parts of the data that a model is fitted on, and what an algorithm may ask of all of them.

A part is an object that lies where one block lies, and computes on that block. An algorithm is a function that is given
`Parts` and calls methods of all of them; it never sees a block. So it is written once for all engines: for one process
(`LocalParts`), for Dask (`workbench.ml.engine.dask_parts`) and for MPI (`workbench.ml.engine.mpi_parts`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol


class Parts(Protocol):
    """All parts, in the order of their blocks."""

    def sum(self, method: str, *args: Any) -> Any:
        """Call a method of all parts, and return the sum of what they return.

        Parameters
        ----------
        method
            Name of the method.
        *args
            What it is given, everywhere the same: arrays, numbers, anything that can be pickled.

        Returns
        -------
        array, float or tuple of these
            Shaped as the method returns it; numbers are floats. Added in the order of the blocks, by MPI in an order
            of its own, the same each time: engines and numbers of ranks differ by rounding.
        """

    def each(self, method: str, *args: Any) -> list[Any]:
        """Call a method of all parts, and return what each returns, in the order of the blocks."""

    def fold(self, join: Callable[[Any, Any], Any], method: str, *args: Any) -> Any:
        """Call a method of all parts, and join what they return, two neighbours at a time, into one value.

        Parameters
        ----------
        join
            Joins two values, the one of the earlier block first. It has to be associative, and a function that can be
            pickled.
        method, *args
            As of `sum`.
        """

    def report(self, record: Mapping[str, Any]) -> None:
        """Tell how far the fit is: numbers by their names, once an iteration, or once a pass over the data."""


def weighed(total: float) -> float:
    """Return the weight of all rows.

    Raises
    ------
    ValueError
        As scikit-learn words it, if it is 0.
    """
    if total <= 0:
        raise ValueError("Sample weights must contain at least one non-zero number.")
    return total


def add(left: Any, right: Any) -> Any:
    """Return the sum of two values as `Parts.sum` knows them."""
    if isinstance(left, tuple):
        return tuple(map(add, left, right))
    return left + right


class LocalParts:
    """Parts in this process.

    Parameters
    ----------
    parts
        The parts; most often there is one.
    report
        Is given each record of `Parts.report`.
    """

    def __init__(self, parts: Sequence[Any], report: Callable[[Mapping[str, Any]], None] | None = None) -> None:
        self._parts = parts
        self._report = report

    def report(self, record: Mapping[str, Any]) -> None:
        """See `Parts.report`."""
        if self._report is not None:
            self._report(record)

    def sum(self, method: str, *args: Any) -> Any:
        """See `Parts.sum`."""
        return functools.reduce(add, self.each(method, *args))

    def each(self, method: str, *args: Any) -> list[Any]:
        """See `Parts.each`."""
        return [getattr(part, method)(*args) for part in self._parts]

    def fold(self, join: Callable[[Any, Any], Any], method: str, *args: Any) -> Any:
        """See `Parts.fold`."""
        return functools.reduce(join, self.each(method, *args))
