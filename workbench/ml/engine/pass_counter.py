"""Parts of algorithms without iterations, which report their passes over the data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from workbench.ml.engine.parts import Parts


class Passes:
    """Parts that report each pass over the data: ``{"pass": 1, "name": "gram"}``.

    Parameters
    ----------
    parts
        The parts without reports.
    """

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        """The parts without reports, for a pass that calls `report` with a record of its own."""
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
