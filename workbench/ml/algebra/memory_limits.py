"""The memory that the matrices of a fit may take: what an algorithm holds against it by itself."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dask.utils import format_bytes


@dataclass(frozen=True)
class Limit:
    """The memory limit of what computes with the matrices of a fit."""

    nbytes: float = math.inf
    """Infinite where nobody was asked."""
    whose: str = ""

    def over(self, nbytes: int) -> str:
        """Return why matrices of so many bytes have no room; empty if these have room."""
        if nbytes <= self.nbytes:
            return ""
        limit = format_bytes(int(self.nbytes))
        return f"{format_bytes(nbytes)} for matrices, and the memory limit of {self.whose} is {limit}"


UNASKED = Limit()
"""Where no matrix is large."""
