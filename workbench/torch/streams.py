"""Lazy collections of Dask as streams: chunks of rows that ranks compute while they train."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workbench.errors import InvalidRequest
from workbench.placement.sources import type_name
from workbench.torch.tensors import tensor

if TYPE_CHECKING:
    import numpy.typing as npt

WINDOW = 16
"""Chunks of a window, if the user has named no other number."""


@dataclass(frozen=True, repr=False)
class Stream:
    """Rows that `batches` and `fit` read chunk by chunk; a result of `stream`."""

    window: int
    """Chunks of all ranks whose rows are shuffled together."""
    chunks: Sequence[Chunk]
    """The chunks, in the order of the rows."""
    empty: Sequence[npt.NDArray[Any]]
    """For rows, labels and weights an array of their type without rows."""

    def __repr__(self) -> str:
        return f"<stream of {len(self.chunks)} chunks, window={self.window}>"


@dataclass(frozen=True)
class Chunk:
    """The tasks of a chunk, which Dask runs on the rank that reads the chunk."""

    number: int
    graph: Mapping[Any, Any]
    keys: Sequence[Any]
    """For rows, labels and weights the key of the part that the chunk has of them."""


def stream(X: Any, y: Any = None, weight: Any = None, *, window: int = WINDOW) -> Stream:
    """Make a stream of lazy collections whose rows are more than the memory of the ranks.

    Parameters
    ----------
    X : dask.array.Array, dask.dataframe.DataFrame or dask.dataframe.Series of shape (rows, ...)
        For example the result of `dask.dataframe.read_parquet` or `dask.array.from_zarr`. Arrays with chunks along
        other axes than the first are rechunked, since a chunk has all values of its rows.
    y : Dask collection of shape (rows, ...), default=None
        Labels of the rows, in chunks of the same rows. An array with other chunks is rechunked to those of `X`.
    weight : Dask collection of shape (rows, ...), default=None
        Weights of the rows, or other values beside `y`.
    window : int, default=16
        Number of chunks, those of all ranks, whose rows are shuffled together. A batch has rows of one window, so a
        larger number is closer to a shuffle of all rows, and needs more memory.

    Returns
    -------
    Stream
        An argument of `fit`, or of a function with `spmd` that passes it to `batches`.

    Raises
    ------
    InvalidRequest
        If an argument is not a lazy collection or is in memory already, the collections have different chunks, or
        PyTorch has no tensors of their elements.

    Notes
    -----
    A rank has the rows of ``window / ranks`` chunks, at least of one. While the rank trains, its Dask worker computes
    as many chunks of the next window. While ranks exchange rows, a rank needs up to six times the memory of its part of
    a window. Each epoch computes the chunks anew, each with all its dependencies: before a training write the result of
    ``shuffle`` or ``set_index`` to Parquet.

    Examples
    --------
    >>> frame = dask.dataframe.read_parquet("flights")  # doctest: +SKIP
    >>> fit(net, loss, stream(frame[["distance", "hour"]], frame["late"]), epochs=5)  # doctest: +SKIP
    """
    from dask.core import flatten
    from dask.optimization import cull

    if window < 1:
        raise InvalidRequest(f"window={window} is not valid: choose a whole number of chunks above zero")
    given = {name: part for name, part in (("X", X), ("y", y), ("weight", weight)) if part is not None}
    columns = _together({name: _in_rows(name, part) for name, part in given.items()})
    empty = [_empty(column) for column in columns]
    lazy = [_optimized(column) for column in columns]
    graph = {key: task for column in lazy for key, task in column.__dask_graph__().items()}
    keys = [flatten(column.__dask_keys__()) for column in lazy]
    _refuse_memory(graph)
    parts = [list(part) for part in zip(*keys, strict=True)]
    return Stream(window, [Chunk(number, cull(graph, part)[0], part) for number, part in enumerate(parts)], empty)


def _in_rows(name: str, collection: Any) -> Any:
    """Return a collection whose chunks have all columns of their rows."""
    import dask.array as da
    import dask.dataframe as dd

    if isinstance(collection, dd.DataFrame | dd.Series):
        return collection
    if not isinstance(collection, da.Array) or not collection.ndim:
        raise InvalidRequest(
            f"{name} is {type_name(collection)}: a stream takes lazy arrays and dataframes of Dask. Pass rows in "
            "memory to place(), and the result to batches() or fit()"
        )
    return collection.rechunk(dict.fromkeys(range(1, collection.ndim), -1))


def _together(columns: Mapping[str, Any]) -> list[Any]:
    """Return the collections in chunks of the same rows."""
    import dask.array as da

    (first, X), *_ = columns.items()
    result = []
    for name, column in columns.items():
        lengths = [part.shape[0] if isinstance(part, da.Array) else math.nan for part in (X, column)]
        if not any(map(math.isnan, lengths)):
            if lengths[0] != lengths[1]:
                raise InvalidRequest(
                    f"{name} has {lengths[1]} rows and {first} has {lengths[0]}: they have to go together"
                )
            result.append(column.rechunk({0: X.chunks[0]}))
        elif column.npartitions != X.npartitions:
            raise InvalidRequest(
                f"{name} has {column.npartitions} chunks and {first} has {X.npartitions}: derive both from one "
                "collection, so that chunks have the same rows"
            )
        else:
            result.append(column)
    return result


def _empty(column: Any) -> npt.NDArray[Any]:
    """Return an array of the type of a collection without rows; raise InvalidRequest if PyTorch has no such type."""
    import numpy as np

    meta = column._meta  # noqa: SLF001  (no public name exists)
    like = meta.to_numpy() if hasattr(meta, "to_numpy") else np.empty((0, *column.shape[1:]), meta.dtype)
    array: npt.NDArray[Any] = tensor(like[:0]).numpy()
    return array


def _optimized(column: Any) -> Any:
    """Return a collection that reads only what it needs, with its chunks."""
    from dask.base import optimize

    # All optimizations of dataframes would join partitions of which few columns are read.
    return column.simplify() if hasattr(column, "simplify") else optimize(column)[0]


def _refuse_memory(graph: Mapping[Any, Any]) -> None:
    from distributed import Future

    if any(isinstance(task, Future) for task in graph.values()):
        raise InvalidRequest(
            "the rows are in the memory of the cluster already, by place() or persist(): pass placed collections to "
            "batches() or fit() themselves, and lazy ones to stream()"
        )
