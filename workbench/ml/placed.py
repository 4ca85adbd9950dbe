"""The data of a fit on ranks: one block of rows, of targets and of weights on each rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from numbers import Number
from typing import TYPE_CHECKING, Any

import dask
import numpy as np
from dask.base import compute, is_dask_collection
from distributed import Future

from workbench import place
from workbench.errors import PlacementError
from workbench.extension import current_client
from workbench.ml.frames import array_of, plain
from workbench.placement import pinning, rows, sources
from workbench.placement.place import AlignedBlocks, PlacedBlocks
from workbench.placement.sources import materialize

if TYPE_CHECKING:
    from distributed import Client


_NAMES = "X", "y", "sample_weight"


def placed(columns: Sequence[Any]) -> list[Any]:
    """Return columns as Dask collections with one block per rank; placed collections are returned unchanged.

    Parameters
    ----------
    columns
        Rows, targets and weights: Dask collections, arrays and dataframes. None, numbers and results of `beside` are
        returned unchanged.

    Notes
    -----
    If the first collection is placed, the others are placed beside it. Tasks that several collections share are
    computed once if these are all dataframes, or all arrays.

    Raises
    ------
    PlacementError
        The error of `workbench.place`.
    """
    numbers = [
        number
        for number, value in enumerate(columns)
        if not (value is None or isinstance(value, Number | AlignedBlocks))
    ]
    collections = dict(zip(numbers, counted([columns[number] for number in numbers]), strict=True))
    first, *rest = collections
    if sources.placed_by(collections[first]) is None:
        blocks = place(*collections.values())
        collections = dict(zip(collections, blocks if rest else [blocks], strict=True))
    else:
        collections |= _beside(collections[first], {number: collections[number] for number in rest})
    return [collections.get(number, value) for number, value in enumerate(columns)]


def counted(collections: Sequence[Any]) -> list[Any]:
    """Return collections whose arrays have known lengths; arrays of unknown lengths are computed together."""
    unknown = [
        number for number, value in enumerate(collections) if not has_lengths(value) and hasattr(value, "chunks")
    ]
    result = list(collections)
    lazy = [result[number] for number in unknown]
    client = _client_of(lazy)
    with dask.config.set({} if client is None else {"scheduler": client}):
        for number, value in zip(unknown, materialize(client, lazy), strict=True):
            result[number] = value.compute_chunk_sizes()
    return result


def computed(*collections: Any) -> list[Any]:
    """Compute Dask collections together: data on a cluster there, whatever scheduler the user has set."""
    return list(compute(*collections, traverse=False, scheduler=_client_of(collections)))


def _client_of(collections: Sequence[Any]) -> Client | None:
    """Return the client of data on a cluster; None if all data of Dask collections are lazy."""
    values = (value for collection in collections if is_dask_collection(collection) for value in _stored(collection))
    future = next((value for value in values if isinstance(value, Future)), None)
    return None if future is None else current_client(future.client)


def _stored(collection: Any) -> Iterator[Any]:
    """Yield the values that are stored in a collection; tasks that Dask makes on demand have no futures."""
    from dask.delayed import Delayed
    from dask.highlevelgraph import HighLevelGraph, MaterializedLayer

    # The graph of a dataframe is made at each access.
    is_frame = hasattr(collection, "to_dask_array")
    nodes = [node.operands for node in collection.expr.walk()] if is_frame else [[collection.dask]]
    for operand in chain.from_iterable(nodes):
        value = operand.dask if isinstance(operand, Delayed) else operand
        layers = value.layers.values() if isinstance(value, HighLevelGraph) else [value]
        for layer in layers:
            if isinstance(layer, MaterializedLayer | dict):
                yield from layer.values()
            else:
                yield layer


def _beside(first: Any, others: dict[int, Any]) -> dict[int, Any]:
    """Return collections placed beside the first."""
    own = PlacedBlocks.of(first)
    away = {number: other for number, other in others.items() if not _lies(other, own)}
    if not away:
        return others
    # The blocks of the first collection may have no rows.
    ranks = [rank for rank, pin in zip(_ranks_of(own), own.pins, strict=True) if pin.rows]
    whole = sources.inspect_collection("X", as_array(first))
    inspected = [sources.inspect_collection(_NAMES[number], other) for number, other in away.items()]
    sources.check([whole, *inspected], ranks)
    inspected = sources.persist(own.client, inspected)
    sources.check([whole, *inspected], ranks)
    return others | {
        number: sources.build_blocks(own.client, source, own.pins, own.per)
        for number, source in zip(away, inspected, strict=True)
    }


def beside(first: Any, other: Any) -> AlignedBlocks:
    """Return a collection placed on the ranks of another, with its own number of rows.

    Parameters
    ----------
    first
        A placed collection.
    other
        Dask array of known lengths with at least one row per rank; an array on these ranks is not copied.
    """
    own = PlacedBlocks.of(first)
    addresses = [pin.address for pin in own.pins]
    if sources.placed_by(other) is None or [pin.address for pin in PlacedBlocks.of(other).pins] != addresses:
        ranks = _ranks_of(own)
        source = sources.inspect_collection("X", other)
        sources.check([source], ranks)
        sizes = rows.split(other.shape[0], len(ranks))
        [source] = sources.persist(own.client, [source])
        other = sources.build_blocks(own.client, source, list(map(pinning.Pin, addresses, sizes)), own.per)
    return AlignedBlocks(other)


def _ranks_of(placed: PlacedBlocks) -> list[pinning.Rank]:
    """Return the ranks of blocks; raise PlacementError if ranks are lost."""
    ranks = pinning.target_workers(placed.client, placed.per)
    if [rank.address for rank in ranks] != [pin.address for pin in placed.pins]:
        raise PlacementError("X is not placed on all ranks, or a rank with rows of X was lost. Place X again.")
    return ranks


def _lies(collection: Any, placed: PlacedBlocks) -> bool:
    """Return whether the blocks of a collection are beside other blocks."""
    if sources.placed_by(collection) is None:
        return False
    return PlacedBlocks.of(collection, placed.client).pins == placed.pins


def has_lengths(collection: Any) -> bool:
    """Return whether the lengths of the chunks are known."""
    return (
        hasattr(collection, "shape") and not hasattr(collection, "divisions") and not np.isnan(collection.shape).any()
    )


def in_blocks(X: Any, dtype: Any = None) -> Any:
    """Return the Dask array whose chunks are the dataframes of a placed collection; other values unchanged.

    Parameters
    ----------
    X
        A collection.
    dtype
        Dtype of the Dask array; None: the dtype of the dataframes as arrays.
    """
    if not (hasattr(X, "divisions") and sources.placed_by(X)):
        return X
    blocks = PlacedBlocks.of(X)
    lengths = [pin.rows or 0 for pin in blocks.pins]
    empty = array_of(X._meta)
    graph = {(X._name, number, *(0,) * (X.ndim - 1)): future for number, future in enumerate(blocks.futures)}
    return sources.collection(empty if dtype is None else empty.astype(dtype), X._name, graph, lengths)


def as_array(collection: Any) -> Any:
    """Return the lazy Dask array of a Dask dataframe or series; arrays unchanged.

    Notes
    -----
    The lengths are known if the dataframe is placed; the lengths of other dataframes need a computation.
    """
    if not (is_dask_collection(collection) and hasattr(collection, "to_dask_array")):
        return collection
    lengths = None
    if sources.placed_by(collection) is not None:
        lengths = [pin.rows or 0 for pin in PlacedBlocks.of(collection).pins]
    # Dask warns of dtypes that only pandas has. `plain` converts text to objects, and nullable numbers to floats.
    return plain(collection).to_dask_array(lengths=lengths)
