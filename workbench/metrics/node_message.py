"""The message of a node to the head: the columns of its arrays.

Messages have totals, not differences: a message that is lost or repeated changes nothing, and a rank that begins to
send for its node needs no state of its predecessor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.mpi.counters import SIZES

if TYPE_CHECKING:
    from numpy.typing import NDArray

SENT = ("rank", "peer", "kind", "bytes", "messages")
"""Columns of ``sent``: totals that have changed."""
OPERATION_TOTALS = ("rank", "operation", "calls", "bytes", "seconds")
"""Columns of ``operations``: totals that have changed."""
SIZED = ("rank", "kind", *range(SIZES))
"""Columns of ``sizes``: totals that have changed."""
WHO = ("rank", "key", "number", "operation")
"""Columns of ``who``: synchronizations, see `workbench.mpi.counters.Counters`."""
WHEN = ("entered", "left")
"""Columns of ``when``: the same synchronizations, in seconds since the epoch by the clock of the head."""


def pack_rows(rows: Iterable[Sequence[float]]) -> bytes:
    """Return rows of numbers as bytes of float64."""
    return np.array(list(rows), np.float64).tobytes()


def rows(packed: bytes, columns: tuple[Any, ...], dtype: Any = np.float64) -> NDArray[Any]:
    """Return packed rows of numbers as an array of shape (n, len(columns))."""
    return np.frombuffer(packed, dtype).reshape(-1, len(columns))
