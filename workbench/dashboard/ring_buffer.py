"""A ring buffer of rows of numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray


class RingBuffer:
    """Keeps the last rows of one shape, contiguous in memory.

    Notes
    -----
    The buffer has a quarter more rows, so its rows move to the front only once in that many rows.
    """

    def __init__(self, rows: int, shape: tuple[int, ...], dtype: DTypeLike) -> None:
        self._rows = rows
        self._kept = np.empty((rows + rows // 4 + 1, *shape), dtype)
        self._begin = self._end = 0

    @property
    def view(self) -> NDArray[Any]:
        """The rows, oldest first; valid until rows are added."""
        return self._kept[self._begin : self._end]

    def add(self, rows: NDArray[Any]) -> None:
        """Add rows, the oldest first."""
        rows = rows[-self._rows :]
        if self._end + len(rows) > len(self._kept):
            left = self.view[-(self._rows - len(rows)) :] if len(rows) < self._rows else self.view[:0]
            self._kept[: len(left)] = left.copy()
            self._begin, self._end = 0, len(left)
        self._kept[self._end : self._end + len(rows)] = rows
        self._end += len(rows)
        self._begin = max(self._begin, self._end - self._rows)
