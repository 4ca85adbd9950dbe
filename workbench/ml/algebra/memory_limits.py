"""The memory limit of a fit, with which algorithms compare the size of their matrices."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dask.utils import format_bytes


@dataclass(frozen=True)
class Limit:
    """The memory limit of a process that computes with the matrices of a fit."""

    nbytes: float = math.inf
    """Infinite if the limit was not needed."""
    whose: str = ""
    """Name of the process, for messages."""

    def over(self, nbytes: int) -> str:
        """Return why matrices of this size exceed the limit; empty if they do not."""
        if nbytes <= self.nbytes:
            return ""
        limit = format_bytes(int(self.nbytes))
        return f"{format_bytes(nbytes)} for matrices, and the memory limit of {self.whose} is {limit}"


UNASKED = Limit()
"""The limit of a fit without large matrices."""
