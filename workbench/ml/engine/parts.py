"""The parts of the data of a fit, and the operations of an algorithm on all parts.

A part is an object on the rank of one block, and computes on that block. An algorithm is a function of `Parts` that
calls methods of all parts, and never accesses a block. The same algorithm runs in one process (`LocalParts`), over Dask
(`workbench.ml.engine.dask_parts`) and over MPI (`workbench.ml.engine.mpi_parts`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol


class Parts(Protocol):
    """All parts, in the order of their blocks."""

    def sum(self, method: str, *args: Any) -> Any:
        """Call a method of all parts, and return the sum of the results.

        Parameters
        ----------
        method
            Name of the method.
        *args
            The arguments of all parts: values that can be pickled.

        Returns
        -------
        array, float or tuple of these
            The shape of a result of the method; numbers are floats. MPI adds in another order than that of the blocks,
            the same order each time: engines and numbers of ranks differ by rounding.
        """

    def each(self, method: str, *args: Any) -> list[Any]:
        """Call a method of all parts, and return the results in the order of the blocks."""

    def fold(self, join: Callable[[Any, Any], Any], method: str, *args: Any) -> Any:
        """Call a method of all parts, and join the results, two neighbors at a time, into one value.

        Parameters
        ----------
        join
            An associative function of two results, that of the earlier block first; it can be pickled.
        method, *args
            See `sum`.
        """

    def report(self, record: Mapping[str, Any]) -> None:
        """Report the progress of a fit: numbers by name, once per iteration or per pass over the data."""


class ConnectedParts(Parts, Protocol):
    """All parts, as an algorithm receives them."""

    direct: bool
    """Whether the parts share a communicator, with which `together` sends messages between them."""

    def together(self, method: str, *args: Any) -> Any:
        """Run a function on the ranks of all parts at the same time, and return what it returns on rank 0.

        Parameters
        ----------
        method
            Name of the method that returns the function. Its arguments are the communicator, None in one process,
            and the function that reports the progress of the fit, None on other ranks than 0.
        *args
            The arguments of the method.

        Raises
        ------
        InvalidRequest
            If the parts are in several processes and not `direct`.
        """


def weighed(total: float) -> float:
    """Return the weight of all rows; raise the ValueError of scikit-learn if the weight is 0."""
    if total <= 0:
        raise ValueError("Sample weights must contain at least one non-zero number.")
    return total


def add(left: Any, right: Any) -> Any:
    """Return the sum of two results of a method, as `Parts.sum` does."""
    if isinstance(left, tuple):
        return tuple(map(add, left, right))
    return left + right


class LocalParts:
    """Parts in this process.

    Parameters
    ----------
    parts
        The parts, most often one.
    report
        Receives each record of `Parts.report`.
    """

    direct = False

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

    def together(self, method: str, *args: Any) -> Any:
        """See `ConnectedParts.together`."""
        (function,) = self.each(method, *args)
        return function(None, self.report)


class Passes:
    """Parts that report each pass over the data: ``{"pass": 1, "name": "gram"}``.

    Parameters
    ----------
    parts
        The parts without reports.
    """

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        """The parts without reports, for a pass that calls `report` with a separate record."""
        self._number = 0

    def sum(self, method: str, *args: Any) -> Any:
        """See `Parts.sum`."""
        return self._reported(method, self.parts.sum(method, *args))

    def each(self, method: str, *args: Any) -> list[Any]:
        """See `Parts.each`."""
        results: list[Any] = self._reported(method, self.parts.each(method, *args))
        return results

    def fold(self, join: Callable[[Any, Any], Any], method: str, *args: Any) -> Any:
        """See `Parts.fold`."""
        return self._reported(method, self.parts.fold(join, method, *args))

    def report(self, record: Mapping[str, Any]) -> None:
        """Report a pass, with its number."""
        self._number += 1
        self.parts.report({**record, "pass": self._number})

    def _reported(self, method: str, result: Any) -> Any:
        self.report({"name": method})
        return result
