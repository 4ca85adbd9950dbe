"""The message of a node to the head: the columns of its arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.mpi.size_bins import SIZES

if TYPE_CHECKING:
    from numpy.typing import NDArray

SENT = ("rank", "peer", "kind", "bytes", "messages")
"""Of ``sent``: totals that have changed."""
OPERATION_TOTALS = ("rank", "operation", "calls", "bytes", "seconds")
"""Of ``operations``: totals that have changed."""
SIZED = ("rank", "kind", *range(SIZES))
"""Of ``sizes``: totals that have changed."""
WHO = ("rank", "key", "number", "operation")
"""Of ``who``: meetings, see `workbench.mpi.counters.Counters`."""
WHEN = ("entered", "left")
"""Of ``when``: the same meetings, in seconds since the epoch by the clock of the head."""


def pack_rows(rows: Iterable[Sequence[float]]) -> bytes:
    """Return rows of numbers as bytes of float64."""
    return np.array(list(rows), np.float64).tobytes()


def rows(packed: bytes, columns: tuple[Any, ...], dtype: Any = np.float64) -> NDArray[Any]:
    """Return rows of numbers, shape (n, len(columns)), that were packed."""
    return np.frombuffer(packed, dtype).reshape(-1, len(columns))
