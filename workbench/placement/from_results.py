"""Return values of a function as blocks of new collections.

`to_blocks` runs on the ranks, `collections` in the client.
"""

from __future__ import annotations

import functools
import itertools
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from workbench.errors import PlacementError
from workbench.placement import pinning, rows, schema, sources
from workbench.placement.pinning import Pin
from workbench.placement.sources import placed_name, type_name
from workbench.text import count

if TYPE_CHECKING:
    from distributed import Client, Future


@dataclass(frozen=True)
class BlockMeta:
    """A block on a rank, without its rows."""

    key: Any
    meta: Any
    """An array or frame of its type without rows."""
    rows: int
    several: bool
    """Whether the function returned a tuple of blocks."""
    types: bytes = b""
    """The result of `schema.described` for a frame."""


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
    several = isinstance(value, tuple)
    if several and not value:
        raise PlacementError('the function returned an empty tuple for result="blocks". Return at least one block.')
    blocks = []
    for column, part in enumerate(value if several else (value,)):
        # `numpy.asarray` would drop the mask.
        masked = isinstance(part, np.ma.MaskedArray)
        if isinstance(part, pd.DataFrame | pd.Series):
            # The package first: another thread may import it, and two imports from both ends find modules half made.
            import dask.dataframe as dd

            block: Any = schema.native(rows.owned_frame([part]))
            # Ranks may have different categories.
            meta: Any = dd.utils.clear_known_categories(block.iloc[:0])
            types = schema.described(block)
            key: tuple[Any, ...] = (placed_name(per, collection, column), number)
        elif isinstance(part, np.ndarray) and part.ndim and not part.dtype.hasobject and not masked:
            native = part if part.dtype.isnative else part.astype(part.dtype.newbyteorder("="))
            block = rows.owned_array([native])
            meta, types = np.empty((0, *part.shape[1:]), block.dtype), b""
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
        blocks.append((BlockMeta(key, meta, len(part), several, types), block))
    return blocks


async def collections(client: Client, blocks: Sequence[Sequence[BlockMeta]], addresses: Sequence[str]) -> Any:
    """Return the collection of the blocks that the ranks have made; a tuple of collections of tuples of blocks.

    Parameters
    ----------
    blocks
        The blocks of each rank.
    addresses
        Addresses of the ranks.

    Raises
    ------
    PlacementError
        If the blocks of the ranks do not fit together. The ranks then keep no block.
    """
    from distributed import Future

    in_memory: Any = "memory"
    # Before any error: the blocks are released with the futures.
    futures: list[list[Future[Any]]] = [
        [Future(meta.key, client, state=in_memory) for meta in metas] for metas in blocks
    ]
    made = []
    try:
        require_consistent(blocks)
        for number, first in enumerate(blocks[0]):
            own, metas = [of_rank[number] for of_rank in futures], [of_rank[number] for of_rank in blocks]
            sizes = [meta.rows for meta in metas]
            pins = list(map(Pin, addresses, sizes))
            meta, keys = first.meta, [meta.key for meta in metas]
            if first.types:
                meta, keys, own = await of_one_type(client, metas, own, pins)
            for future, pin in zip(own, pins, strict=True):
                pinning.cache_pin(future, pin)
            made.append(sources.collection(meta, keys[0][0], dict(zip(keys, own, strict=True)), sizes))
    except PlacementError:
        # The traceback keeps references to the futures.
        for future in itertools.chain(*futures):
            future.release()
        raise
    return tuple(made) if blocks[0][0].several else made[0]


def require_consistent(blocks_of_ranks: Sequence[Sequence[BlockMeta]]) -> None:
    """Raise PlacementError if ranks returned different numbers of blocks, kinds, columns, or dtypes of arrays."""
    expected = blocks_of_ranks[0]
    for number, blocks in enumerate(blocks_of_ranks):
        if len(blocks) != len(expected) or blocks[0].several != expected[0].several:
            raise PlacementError(
                f"rank {number} returned {_count(blocks)} and rank 0 returned {_count(expected)}. Return the same "
                "number of blocks on all ranks."
            )
        for first, other in zip(expected, blocks, strict=True):
            if not _same_kind(first.meta, other.meta):
                raise PlacementError(
                    f"rank {number} returned {_description(other)}, and rank 0 returned {_description(first)}. Blocks "
                    "of one collection may differ only in the number of rows."
                )


async def of_one_type(
    client: Client, metas: Sequence[BlockMeta], futures: list[Future[Any]], pins: Sequence[Pin]
) -> tuple[Any, list[Any], list[Future[Any]]]:
    """Return the frame without rows, the keys and the futures of frames of one type, which are converted if necessary.

    Raises
    ------
    PlacementError
        If a column has no common type.
    """
    first = metas[0]
    types, alike = await schema.agree(
        client,
        "the result",
        futures,
        [meta.types for meta in metas],
        declared=first.meta,
        owners=functools.partial(schema.places, "rank"),
    )
    keys = [meta.key for meta in metas]
    if not alike:
        name, number = keys[0][0], uuid.uuid4().int
        keys = [(placed_name(name.split("-")[1], number, 0), *key[1:]) for key in keys]
        calls = [
            pinning.PinnedTask(key, schema.conform, (future, types), pin=pin)
            for key, future, pin in zip(keys, futures, pins, strict=True)
        ]
        futures = pinning.submit(client, calls, keys, priority=1)
    return schema.conform(first.meta, types), keys, futures


def _count(blocks: Sequence[BlockMeta]) -> str:
    return f"a tuple of {count(len(blocks), 'block')}" if blocks[0].several else "one block"


def _same_kind(meta: Any, other: Any) -> bool:
    if isinstance(meta, np.ndarray):
        return isinstance(other, np.ndarray) and (meta.shape, meta.dtype) == (other.shape, other.dtype)
    # A missing label differs from itself, but not in an index.
    return type(meta) is type(other) and schema.types_of(meta).labels.equals(schema.types_of(other).labels)


def _description(block: BlockMeta) -> str:
    meta = block.meta
    if isinstance(meta, np.ndarray):
        return f"an array of shape {(block.rows, *meta.shape[1:])} and dtype {meta.dtype}"
    if isinstance(meta, pd.Series):
        return f"a series {meta.name!r} of dtype {meta.dtype} with an index of {meta.index.dtype}"
    columns = ", ".join(f"{name} ({dtype})" for name, dtype in meta.dtypes.items())
    return f"a dataframe of columns {columns} with an index of {meta.index.dtype}"
