"""What a function made on a rank, as blocks of new collections; what of several ranks fits together.

`blocks` runs on the ranks, `fit` in the client.
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


@dataclass(frozen=True)
class BlockMeta:
    """A block that was made on a rank, without its rows."""

    key: Any
    meta: Any
    """An array or frame of its type without rows."""
    rows: int
    several: bool
    """Whether the function returned a tuple of them."""


def to_blocks(value: Any, number: int, *, per: str, collection: int) -> list[tuple[BlockMeta, Any]]:
    """Return what a function returned on a rank, as blocks that own their memory.

    Parameters
    ----------
    value
        An array of at least one axis, a pandas dataframe or series; or a tuple of them.
    number
        Of the rank, among those of the call.
    per, collection
        What the new collections are called after; see `placed_name`.

    Raises
    ------
    PlacementError
        If it is anything else.
    """
    from dask.dataframe.utils import clear_known_categories

    several = isinstance(value, tuple)
    if several and not value:
        raise PlacementError('an empty tuple was returned for result="blocks": one block at least is needed')
    blocks = []
    for column, part in enumerate(value if several else (value,)):
        # numpy itself would drop the mask
        masked = isinstance(part, np.ma.MaskedArray)
        if isinstance(part, pd.DataFrame | pd.Series):
            block: Any = rows.owned_frame([part])
            # Which categories there are may differ from rank to rank.
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
                f'{description} was returned for result="blocks": a block is a numpy array of one axis or more and of '
                "numbers, or a pandas dataframe or series; several of them are returned as a tuple"
            )
        blocks.append((BlockMeta(key, meta, len(part), several), block))
    return blocks


def require_consistent(made: Sequence[Sequence[BlockMeta]]) -> None:
    """Refuse what does not fit together as blocks.

    Parameters
    ----------
    made
        What each rank made, in the order of the ranks.

    Raises
    ------
    PlacementError
        If the ranks made different numbers of blocks, or blocks of different kinds, columns or dtypes.
    """
    for number, of_rank in enumerate(made):
        if len(of_rank) != len(made[0]) or of_rank[0].several != made[0][0].several:
            raise PlacementError(
                f"{_count(of_rank)} on rank {number} and {_count(made[0])} on rank 0: all ranks have to return as many"
            )
        for first, other in zip(made[0], of_rank, strict=True):
            if _signature(first.meta) != _signature(other.meta):
                raise PlacementError(
                    f"rank {number} returned {_words(other)} and rank 0 {_words(first)}: blocks of one collection "
                    "differ in their numbers of rows only"
                )


def _count(of_rank: Sequence[BlockMeta]) -> str:
    return f"a tuple of {len(of_rank)} was returned" if of_rank[0].several else "one block was returned"


def _signature(meta: Any) -> Any:
    if isinstance(meta, np.ndarray):
        return "array", meta.shape, meta.dtype
    if isinstance(meta, pd.Series):
        return "series", meta.name, str(meta.dtype), meta.index.dtype
    return "dataframe", tuple(meta.columns), tuple(map(str, meta.dtypes)), meta.index.dtype


def _words(made: BlockMeta) -> str:
    meta = made.meta
    if isinstance(meta, np.ndarray):
        return f"an array of shape {(made.rows, *meta.shape[1:])} and dtype {meta.dtype}"
    if isinstance(meta, pd.Series):
        return f"a series {meta.name!r} of dtype {meta.dtype}"
    return f"a dataframe of columns {', '.join(f'{name} ({dtype})' for name, dtype in meta.dtypes.items())}"
