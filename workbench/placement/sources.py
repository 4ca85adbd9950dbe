"""Sources of placed collections: `inspect_collection`, then `persist`, then `build_blocks`.

Notes
-----
Dask reads several small Parquet files in one task if only some columns are used. Its ``persist`` returns the dataframe
with the partitions of before this optimization, some of which have no value (dask#12488). No other module calls
``persist``.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import re
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from workbench.errors import PlacementError
from workbench.gpu.tensors import has_tensors, is_of_other_library
from workbench.placement import rows, schema
from workbench.placement.pinning import Pin, PinnedTask, Rank, check_cluster, submit
from workbench.text import count

if TYPE_CHECKING:
    from distributed import Client, Future


def optimized(collections: Sequence[Any]) -> list[Any]:
    """Return collections with the dataframes among them optimized together, so that their partitions are final.

    Notes
    -----
    Tasks that several dataframes share are one task in the results.
    """
    from dask._collections import new_collection
    from dask.base import collections_to_expr

    result = list(collections)
    frames = [number for number, value in enumerate(result) if is_frame(value)]
    if frames:
        together = collections_to_expr([result[number] for number in frames]).optimize()
        for number, expression in zip(frames, together.operands, strict=True):
            result[number] = new_collection(expression)
    return result


def materialize(client: Client | None, collections: Sequence[Any]) -> list[Any]:
    """Start to compute Dask collections, and return them with their values; without a client where Dask computes.

    Notes
    -----
    The dataframes are computed together, and so are the others, so that shared tasks run once.
    """
    from dask.base import persist

    result = optimized(collections)
    for of_frames in (False, True):
        numbers = [number for number, value in enumerate(result) if is_frame(value) is of_frames]
        if numbers:
            together = [result[number] for number in numbers]
            persisted = client.persist(together) if client else persist(*together, traverse=False)
            for number, value in zip(numbers, persisted, strict=True):
                result[number] = value
    return result


def is_frame(collection: Any) -> bool:
    """Return whether a value is a dataframe or series of Dask."""
    return hasattr(collection, "divisions")


def with_final_partitions(frame: Any) -> Any:
    """Return a lazy dataframe whose partitions no further optimization joins, whatever is derived from it."""
    from dask.core import flatten
    from dask.dataframe import from_graph

    [frame] = optimized([frame])
    keys = list(flatten(frame.__dask_keys__()))
    return from_graph(frame.dask, frame._meta, frame.divisions, keys, "partitions")  # noqa: SLF001, no public name


_PREFIX = "placed"
_BLOCK = re.compile(rf"{_PREFIX}-(\w+)-[0-9a-f]{{32}}")
_KINDS = "a Dask or NumPy array, a sparse matrix of SciPy, or a dataframe or series of Dask or pandas"


@dataclass(frozen=True)
class Source:
    """A collection that is placed, and the chunks of it that are computed."""

    name: str
    """Its name in messages."""
    collection: Any
    meta: Any
    """An array or frame of its type without rows."""
    rows: int | None = None
    """None until the rows are counted."""
    nbytes: int = 0
    """Bytes of all rows; 0 until the rows are counted."""
    chunks: Sequence[int] = ()
    """Number of rows of each computed chunk."""
    types: Sequence[bytes] = ()
    """The result of `schema.described` for each computed chunk of a dataframe."""
    futures: Sequence[Future[Any]] = ()
    """The computed chunks."""
    shared: bool = False
    """Whether another value may share memory with the chunks, so that each block needs a copy."""


def type_name(value: Any) -> str:
    """Return the type of a value with its article, for messages."""
    name = f"{type(value).__module__.partition('.')[0]}.{type(value).__qualname__}".replace("builtins.", "")
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def futures_in(collection: Any) -> list[Future[Any]]:
    """Return the futures of a persisted collection from its graph, in the order of the chunks."""
    from dask.core import flatten
    from dask.task_spec import Alias

    graph = collection.dask
    values = [graph[key] for key in flatten(collection.__dask_keys__())]
    return [graph[value.target] if isinstance(value, Alias) else value for value in values]


def find_blocks(collection: Any) -> tuple[str, list[Future[Any]]] | None:
    """Return the argument ``per`` and the futures of the blocks of a placed collection; None for any other value."""
    from dask.base import is_dask_collection

    # The name of a dataframe costs nothing. Its graph is expensive where the dataframe is not placed.
    if not is_dask_collection(collection) or not str(getattr(collection, "_name", "")).startswith(_PREFIX):
        return None
    futures = futures_in(collection)
    key = getattr(futures[0], "key", None)
    match = _BLOCK.fullmatch(key[0]) if isinstance(key, tuple) else None
    return (match[1], futures) if match else None


def placed_by(collection: Any) -> str | None:
    """Return the argument ``per`` that a collection was placed with; None if the collection is not placed."""
    found = find_blocks(collection)
    return found[0] if found else None


def placed_name(per: str, number: int, column: int) -> str:
    """Return a name for a placed collection, from a unique 128-bit number and the index of the collection in a call."""
    return f"{_PREFIX}-{per}-{(number + column) % 2**128:032x}"


def inspect_collection(name: str, collection: Any, device: str | None = None) -> Source:
    """Return the source of a collection, without computing; raise PlacementError if it cannot be placed.

    A `device` takes arrays of other libraries, too.
    """
    import dask.array as da
    import dask.dataframe as dd

    if isinstance(collection, dd.DataFrame | dd.Series) and not isinstance(collection, dd.Index):
        _refuse_incomplete(name, collection)
        return Source(name, collection, collection._meta)  # noqa: SLF001, there is no public name for it
    if isinstance(collection, pd.DataFrame | pd.Series):
        collection = schema.native(collection)
        nbytes = int(np.sum(collection.memory_usage(deep=True)))
        return Source(name, collection, collection.iloc[:0], len(collection), nbytes)
    meta = collection._meta if isinstance(collection, da.Array) else collection  # noqa: SLF001, as above
    if rows.is_matrix(meta) and meta.ndim == 2:
        return _inspect_matrix(name, collection, meta)
    is_array = isinstance(meta, np.ndarray) and not isinstance(meta, np.ma.MaskedArray)
    is_foreign = isinstance(collection, da.Array) and is_of_other_library(meta)
    if not is_array and not (is_foreign and device is not None):
        inner = "" if meta is collection else f" of {type_name(meta)}"
        remedy = f'Call place({name}, device="cuda"), whose blocks are tensors, or convert' if is_foreign else "Convert"
        raise PlacementError(
            f"{name} is {type_name(collection)}{inner}, which cannot be placed. {remedy} {name} to {_KINDS}."
        )
    if collection.ndim == 0:
        raise PlacementError(f"{name} is one number and has no rows. Pass the number to map_blocks unplaced.")
    _refuse_unknown(name, collection)
    empty = np.empty((0, *collection.shape[1:]), meta.dtype.newbyteorder("=") if is_array else meta.dtype)
    return Source(name, collection, empty, len(collection), collection.nbytes)


def _inspect_matrix(name: str, collection: Any, meta: Any) -> Source:
    _refuse_unknown(name, collection)
    # The bytes of a chunk are known only when the chunk is computed.
    nbytes = rows.nbytes(collection) if collection is meta else 0
    empty = rows.empty_matrix(meta)
    empty.resize((0, collection.shape[1]))
    return Source(name, collection, empty, collection.shape[0], nbytes)


def _refuse_incomplete(name: str, frame: Any) -> None:
    for each in frame.expr.walk():
        # See `materialize`.
        if type(each).__name__ == "FromGraph" and len(each.operand("keys")) < each.npartitions:
            raise PlacementError(
                f"{name} was persisted, and has lost partitions, because Dask joins small Parquet files (dask#12488). "
                f"Place the dataframe from before persist(): the placed {name} is persisted."
            )


def _refuse_unknown(name: str, collection: Any) -> None:
    if np.isnan(collection.shape).any():
        raise PlacementError(
            f"{name} has chunks of unknown lengths: its shape is {collection.shape}. Call {name}.compute_chunk_sizes() "
            f"before you place {name}."
        )


def check(sources: Sequence[Source], ranks: Sequence[Rank]) -> None:
    """Raise PlacementError if the counted rows are none, too few or of different number, or need too much memory."""
    from dask.utils import format_bytes

    counted = [(source, source.rows) for source in sources if source.rows is not None]
    for source, length in counted:
        first, expected = counted[0]
        if length == 0 or 0 in source.meta.shape[1:]:
            shape = (length, *source.meta.shape[1:])
            raise PlacementError(
                f"{source.name} is empty: its shape is {shape}. Place a collection with at least one row and one "
                "column."
            )
        if length != expected:
            raise PlacementError(
                f"{source.name} has {length} rows and {first.name} has {expected}. Collections that are placed "
                "together need the same number of rows: cut or join them first."
            )
        if length < len(ranks):
            raise PlacementError(
                f"{source.name} has {count(length, 'row')} for {len(ranks)} blocks, and each block needs at least one "
                "row. Use fewer ranks (or per='node'), or compute or fit in this process, with the rows that "
                "X.compute() of a Dask collection returns."
            )
    for number, rank in enumerate(ranks):
        nbytes = sum(source.nbytes * rows.split(length, len(ranks))[number] // length for source, length in counted)
        if rank.memory_limit and nbytes > rank.memory_limit:
            raise PlacementError(
                f"the block of rank {rank.name} would have {format_bytes(nbytes)}, and the memory limit of the rank is "
                f"{format_bytes(rank.memory_limit)}. Use more ranks, a higher memory limit or fewer columns."
            )


def persist(client: Client, sources: Sequence[Source]) -> list[Source]:
    """Start to compute the Dask collections and count the rows of dataframes."""
    from dask.base import is_dask_collection
    from distributed import Future

    lazy = [number for number, source in enumerate(sources) if is_dask_collection(source.collection)]
    collections = optimized([sources[number].collection for number in lazy])
    sources = list(sources)
    for number, collection in zip(lazy, collections, strict=True):
        sources[number] = replace(sources[number], collection=collection)
    # The graph of a dataframe is made at each access.
    graphs = [dict(source.collection.dask) if number in lazy else {} for number, source in enumerate(sources)]
    for source, graph in zip(sources, graphs, strict=True):
        check_cluster(client, [value for value in graph.values() if isinstance(value, Future)], source.name)
    shared = _shared(client, sources, graphs)
    persisted = materialize(client, list(map(_columns_together, collections)))
    futures = dict(zip(lazy, map(futures_in, persisted), strict=True))
    return [
        _counted(client, replace(source, futures=futures[number], shared=shared[number]))
        if number in futures
        else source
        for number, source in enumerate(sources)
    ]


def _shared(client: Client, sources: Sequence[Source], graphs: Sequence[dict[Any, Any]]) -> list[bool]:
    """Return for each source whether its chunks may share memory with the values of other futures or sources."""
    from dask.core import flatten

    # A task may return its argument, so all keys of the graph count.
    held, shared = set(client.futures), []
    for graph in graphs:
        shared.append(not held.isdisjoint(graph))
        held |= graph.keys()
    # The chunks of a source count for those before it, too: a later source may be computed from them after a function
    # has written to the blocks. Other tasks that both have do not, or a table would be copied whole for its labels.
    later: set[Any] = set()
    for number in reversed(range(len(sources))):
        if graphs[number]:
            chunks = flatten(sources[number].collection.__dask_keys__())
            shared[number] = shared[number] or not later.isdisjoint(chunks)
            later |= graphs[number].keys()
    return shared


def _columns_together(collection: Any) -> Any:
    import dask.array as da

    if not isinstance(collection, da.Array):
        return collection
    return collection.rechunk(dict.fromkeys(range(1, collection.ndim), -1))


def _counted(client: Client, source: Source) -> Source:
    if source.rows is not None:
        return replace(source, chunks=source.collection.chunks[0])
    measured = client.gather(client.map(rows.measured, source.futures, pure=False))
    lengths, nbytes, types = zip(*measured, strict=True)
    return replace(source, chunks=lengths, rows=sum(lengths), nbytes=sum(nbytes), types=types)


def check_for_device(source: Source, device: str) -> None:
    """Raise PlacementError unless a source is an array of numbers, of which PyTorch has tensors."""
    if not (isinstance(source.meta, np.ndarray) and has_tensors(source.meta.dtype)):
        kind = f"an array of {source.meta.dtype}" if isinstance(source.meta, np.ndarray) else type_name(source.meta)
        raise PlacementError(
            f"{source.name} is {kind}, and device={device!r} places only arrays of numbers. Convert {source.name} "
            f"first, or place {source.name} in another call without device=."
        )


def build_blocks(client: Client, source: Source, pins: Sequence[Pin], per: str, device: str | None = None) -> Any:
    """Make the blocks of a source on the ranks, and return the placed collection.

    Raises
    ------
    PlacementError
        If a column of a dataframe has no type for all blocks. Where an array is the source, its blocks fail.
    """
    sizes = [pin.rows or 0 for pin in pins]
    if not source.futures:
        source = replace(source, chunks=sizes, futures=_scatter(client, source.collection, pins))
    cuts = rows.cuts(source.chunks, sizes)
    meta, make_block = source.meta, _joined(source.meta)
    if device is not None:
        make_block = functools.partial(rows.owned_tensor, device=device)
    if source.types:
        meta, make_block = _of_one_type(client, source, cuts, per)
    name = placed_name(per, uuid.uuid4().int, 0)
    other_axes = meta.ndim - 1 if _is_array(meta) else 0
    keys = [(name, number, *(0,) * other_axes) for number in range(len(pins))]

    calls: list[PinnedTask] = []
    for number, (key, pin, cuts_of_block) in enumerate(zip(keys, pins, cuts, strict=True)):
        pieces: list[Any] = []
        for cut in cuts_of_block:
            piece: Any = source.futures[cut.chunk]
            if cut.stop - cut.start < source.chunks[cut.chunk]:
                call = PinnedTask((f"{name}-cut", number, cut.chunk), _cut_out(meta), (piece, cut.start, cut.stop))
                calls.append(call)
                piece = call.reference
            pieces.append(piece)
        # Beside a collection with a block without rows, a block has none either.
        options: dict[str, Any] = {"copy": source.shared or not pieces}
        if _is_array(meta):
            shape = (sizes[number], *meta.shape[1:])
            options["declared"] = rows.Declared(f"the block of {source.name} on {per} {number}", shape, meta.dtype)
        calls.append(PinnedTask(key, make_block, (pieces or [meta],), options, pin=pin))
    # With priority: a finished block frees the memory of its chunks before more chunks are read.
    futures = submit(client, calls, keys, priority=1)
    return collection(meta, name, dict(zip(keys, futures, strict=True)), sizes)


def _of_one_type(
    client: Client, source: Source, cuts: Sequence[Sequence[rows.Cut]], unit: str
) -> tuple[Any, Callable[..., Any]]:
    """Return the empty frame of the types that all blocks get, and the function that makes a block."""
    filled = [number for number, length in enumerate(source.chunks) if length]

    def owners(chunks: Sequence[int]) -> str:
        wanted = {filled[chunk] for chunk in chunks}
        blocks = [number for number, block in enumerate(cuts) if not wanted.isdisjoint(cut.chunk for cut in block)]
        return schema.places(unit, blocks)

    futures, types = [source.futures[number] for number in filled], [source.types[number] for number in filled]
    agreed, alike = client.sync(schema.agree, client, source.name, futures, types, declared=source.meta, owners=owners)
    make_block = rows.owned_frame if alike else functools.partial(rows.owned_frame, types=agreed)
    return schema.conform(source.meta, agreed), make_block


def _is_array(meta: Any) -> bool:
    return isinstance(meta, np.ndarray) or rows.is_matrix(meta)


def _joined(meta: Any) -> Callable[..., Any]:
    """Return the function that joins rows of this kind of collection."""
    if isinstance(meta, np.ndarray):
        return rows.owned_array
    return rows.owned_matrix if rows.is_matrix(meta) else rows.owned_frame


def _cut_out(meta: Any) -> Callable[[Any, int, int], Any]:
    """Return the function that cuts rows of this kind of collection."""
    if isinstance(meta, np.ndarray):
        return rows.cut_array
    return rows.cut_matrix if rows.is_matrix(meta) else rows.cut_frame


def _scatter(client: Client, data: Any, pins: Sequence[Pin]) -> list[Future[Any]]:
    """Send each rank its rows of data in this process."""
    row_indexer = data.tocsr() if rows.is_matrix(data) else data.iloc if hasattr(data, "iloc") else np.asarray(data)
    ends = itertools.accumulate((pin.rows or 0 for pin in pins), initial=0)
    return [
        client.sync(_upload, client, row_indexer[start:stop], pin)
        for pin, (start, stop) in zip(pins, itertools.pairwise(ends), strict=True)
    ]


async def _upload(client: Client, data: Any, pin: Pin) -> Future[Any]:
    """Send data to a rank; a cancellation lets an upload end, because the head would keep its data."""
    upload = asyncio.ensure_future(client.scatter(data, workers=[pin.address], hash=False, asynchronous=True))
    try:
        return await asyncio.shield(upload)
    except asyncio.CancelledError:
        # No other code takes the future, which releases the data, or the error.
        upload.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        raise


def collection(meta: Any, name: str, graph: dict[Any, Future[Any]], sizes: Sequence[int]) -> Any:
    """Return a collection of blocks on the ranks: `graph` has their futures by key, `sizes` their numbers of rows."""
    import dask.array as da
    from dask.dataframe import from_graph

    if _is_array(meta):
        return da.Array(graph, name, (tuple(sizes), *((length,) for length in meta.shape[1:])), meta=meta)
    return from_graph(graph, meta, (None,) * (len(sizes) + 1), list(graph), _PREFIX)
