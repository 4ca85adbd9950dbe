"""Return values of a function as blocks of new collections.

`to_blocks` runs on the ranks, `require_consistent` in the client.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from workbench.errors import PlacementError
from workbench.placement import rows
from workbench.placement.sources import placed_name, type_name
from workbench.text import count


@dataclass(frozen=True)
class BlockMeta:
    """A block on a rank, without its rows."""

    key: Any
    meta: Any
    """An array or frame of its type without rows."""
    rows: int
    several: bool
    """Whether the function returned a tuple of blocks."""


def to_blocks(value: Any, number: int, *, per: str, collection: int) -> list[tuple[BlockMeta, Any]]:
    """Return the return value of a function on a rank as blocks that own their memory.

    Parameters
    ----------
    value
        An array of at least one axis, a pandas dataframe or series; or a tuple of these.
    number
        Number of the rank in the call.
    per, collection
        Arguments of `placed_name` for the new collections.

    Raises
    ------
    PlacementError
        If the value is of another kind.
    """
    from dask.dataframe.utils import clear_known_categories

    several = isinstance(value, tuple)
    if several and not value:
        raise PlacementError('the function returned an empty tuple for result="blocks". Return at least one block.')
    blocks = []
    for column, part in enumerate(value if several else (value,)):
        # `numpy.asarray` would drop the mask.
        masked = isinstance(part, np.ma.MaskedArray)
        if isinstance(part, pd.DataFrame | pd.Series):
            block: Any = rows.owned_frame([part])
            # Ranks may have different categories.
            meta: Any = clear_known_categories(part.iloc[:0])
            key: tuple[Any, ...] = (placed_name(per, collection, column), number)
        elif isinstance(part, np.ndarray) and part.ndim and not part.dtype.hasobject and not masked:
            block, meta = rows.owned_array([part]), np.empty((0, *part.shape[1:]), part.dtype)
            key = (placed_name(per, collection, column), number, *(0,) * (part.ndim - 1))
        else:
            description = type_name(part)
            if isinstance(part, np.ndarray):
                kind = "a masked array" if masked else "an array"
                description = f"{kind} of {part.ndim} axes and dtype {part.dtype}"
            raise PlacementError(
                f'the function returned {description} for result="blocks". Return a NumPy array of numbers with at '
                "least one axis, a pandas dataframe or series, or a tuple of these."
            )
        blocks.append((BlockMeta(key, meta, len(part), several), block))
    return blocks


def require_consistent(blocks_of_ranks: Sequence[Sequence[BlockMeta]]) -> None:
    """Raise PlacementError if ranks returned different numbers of blocks, or different kinds, columns or dtypes."""
    expected = blocks_of_ranks[0]
    for number, blocks in enumerate(blocks_of_ranks):
        if len(blocks) != len(expected) or blocks[0].several != expected[0].several:
            raise PlacementError(
                f"rank {number} returned {_count(blocks)} and rank 0 returned {_count(expected)}. Return the same "
                "number of blocks on all ranks."
            )
        for first, other in zip(expected, blocks, strict=True):
            if _signature(first.meta) != _signature(other.meta):
                raise PlacementError(
                    f"rank {number} returned {_description(other)}, and rank 0 returned {_description(first)}. Blocks "
                    "of one collection may differ only in the number of rows."
                )


def _count(blocks: Sequence[BlockMeta]) -> str:
    return f"a tuple of {count(len(blocks), 'block')}" if blocks[0].several else "one block"


def _signature(meta: Any) -> Any:
    if isinstance(meta, np.ndarray):
        return "array", meta.shape, meta.dtype
    if isinstance(meta, pd.Series):
        return "series", meta.name, str(meta.dtype), meta.index.dtype
    return "dataframe", tuple(meta.columns), tuple(map(str, meta.dtypes)), meta.index.dtype


def _description(block: BlockMeta) -> str:
    meta = block.meta
    if isinstance(meta, np.ndarray):
        return f"an array of shape {(block.rows, *meta.shape[1:])} and dtype {meta.dtype}"
    if isinstance(meta, pd.Series):
        return f"a series {meta.name!r} of dtype {meta.dtype} with an index of {meta.index.dtype}"
    columns = ", ".join(f"{name} ({dtype})" for name, dtype in meta.dtypes.items())
    return f"a dataframe of columns {columns} with an index of {meta.index.dtype}"
