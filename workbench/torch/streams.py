"""Lazy collections of Dask as streams: chunks of rows that ranks compute while they train."""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import torch

from workbench.errors import InvalidRequest
from workbench.mpi.call_state import CallState
from workbench.mpi.polling import poll
from workbench.placement import rows
from workbench.placement.sources import type_name
from workbench.session.current import current_worker
from workbench.torch.tensors import tensor

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from dask.task_spec import GraphNode
    from distributed import Client
    from mpi4py import MPI


WINDOW = 16
"""Chunks of a window, if the user has named no other number."""
# Begin of the key of Dask's task that waits for all chunks of a dataframe.
_BARRIER = "shuffle-barrier-"


@dataclass(frozen=True, repr=False)
class Stream:
    """Rows that `batches` and `fit` read chunk by chunk; a result of `stream`."""

    window: int
    """Chunks of all ranks whose rows are shuffled together."""
    chunks: Sequence[GraphNode]
    """For each chunk, in the order of the rows, a task that returns its rows, labels and weights as arrays."""
    empty: Sequence[npt.NDArray[Any]]
    """For rows, labels and weights an array of their type without rows."""

    def __repr__(self) -> str:
        return f"<stream of {len(self.chunks)} chunks, window={self.window}>"


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
    as many chunks of the next window. With the copies of an exchange a rank needs less than ten times the memory of
    its part of a window. Each epoch computes the chunks anew, each with all its dependencies: before a training write
    the result of ``shuffle`` or ``set_index`` to Parquet.

    Examples
    --------
    >>> import dask.array
    >>> import torch
    >>> from workbench.torch import fit
    >>> X = dask.array.random.default_rng(0).random((800, 2), chunks=(100, 2), dtype="float32")
    >>> y = (X[:, 0] > 0.5).astype(int)
    >>> rows = stream(X, y)
    >>> history = fit(torch.nn.Linear(2, 2), torch.nn.functional.cross_entropy, rows, size=80, epochs=2)
    >>> history[1]["loss"] < history[0]["loss"]
    True
    """
    if window < 1:
        raise InvalidRequest(option="window", given=window, allowed="a whole number of chunks above zero")
    given = {name: part for name, part in (("X", X), ("y", y), ("weight", weight)) if part is not None}
    columns = _together({name: _in_rows(name, part) for name, part in given.items()})
    empty = [_empty(column) for column in columns]
    dtypes = {name: array.dtype for name, array in zip(given, empty, strict=True)}
    chunks = [_chunk(number, parts, dtypes) for number, parts in enumerate(zip(*map(_parts, columns), strict=True))]
    return Stream(window, chunks, empty)


def _in_rows(name: str, collection: Any) -> Any:
    """Return a collection whose chunks have all columns of their rows."""
    import dask.array as da
    import dask.dataframe as dd

    if isinstance(collection, dd.DataFrame | dd.Series):
        return collection
    if not isinstance(collection, da.Array) or not collection.ndim:
        raise InvalidRequest(
            f"{name} is {type_name(collection)}, and a stream takes lazy arrays and dataframes of Dask. Pass rows in "
            "memory to place(), and the result to batches() or fit()."
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
                    f"{name} has {lengths[1]} rows and {first} has {lengths[0]}. Pass the same number of rows."
                )
            result.append(column.rechunk({0: X.chunks[0]}))
        elif column.npartitions != X.npartitions:
            raise InvalidRequest(
                f"{name} has {column.npartitions} chunks and {first} has {X.npartitions}. Derive both from one "
                "collection, so that their chunks have the same rows."
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


def _parts(column: Any) -> Iterator[tuple[Any, dict[Any, GraphNode]]]:
    """Yield for each chunk of a collection its key and the tasks that it needs."""
    from dask.base import optimize
    from dask.core import flatten
    from dask.optimization import cull
    from distributed import Future

    # The other optimizations of dataframes join partitions of which few columns are read.
    lazy = column.simplify() if hasattr(column, "simplify") else column
    graph = lazy.__dask_graph__()
    if any(str(key).startswith(_BARRIER) for key in graph):
        raise InvalidRequest(
            "each chunk depends on all chunks, because of shuffle(), set_index(), sort_values() or merge(). Write the "
            "result to Parquet, and make a stream of the Parquet files."
        )
    if any(isinstance(task, Future) for task in graph.values()):
        raise InvalidRequest(
            "the rows are already in the memory of the cluster, because of place() or persist(). Pass a placed "
            "collection directly to batches() or fit(), and a lazy collection to stream()."
        )
    if lazy is column:
        [lazy] = optimize(column)
        graph = lazy.__dask_graph__()
    for key in flatten(lazy.__dask_keys__()):
        yield key, cull(graph, key)[0]


def _chunk(number: int, parts: Sequence[tuple[Any, dict[Any, GraphNode]]], dtypes: Mapping[str, Any]) -> GraphNode:
    """Return one task for a chunk: as several, other tasks would run between them, while their results take memory."""
    from dask.task_spec import GraphNode, Task, TaskRef

    tasks = {key: task for _, graph in parts for key, task in graph.items()}
    return GraphNode.fuse(*tasks.values(), Task(("chunk", number), arrays, dtypes, *(TaskRef(key) for key, _ in parts)))


def arrays(dtypes: Mapping[str, np.dtype[Any]], *parts: Any) -> list[npt.NDArray[Any]]:
    """Return rows, labels and weights of a chunk as arrays of the types that the stream has promised."""
    import numpy as np

    lengths = [len(part) for part in parts]
    if len({*lengths}) > 1:
        raise InvalidRequest(f"X, y and weight have {lengths} rows in a chunk. Pass the same number of rows.")
    # As in `place`: a column of integers has real numbers in a chunk with missing values, which is an error.
    return [
        np.ascontiguousarray(rows.exact(np.asarray(part), rows.Declared(f"a chunk of {name}", part.shape, dtype)))
        for part, (name, dtype) in zip(parts, dtypes.items(), strict=True)
    ]


Arrays = Sequence["npt.NDArray[Any]"]
"""Rows, labels and weights of a chunk."""
Rows = list[torch.Tensor]
"""Rows, labels and weights of a rank."""

# The streams that are read in this process, by the prefix of the keys of their tasks.
_streams: dict[str, Stream] = {}


def _compute_chunk(name: str, number: int) -> Arrays | None:
    """Compute a chunk in a task on the worker of this process; None if the stream is not read any more."""
    stream = _streams.get(name)
    return None if stream is None else stream.chunks[number]({})


class ChunkReader:
    """Reads the windows of a rank, one after the other.

    Parameters
    ----------
    comm
        Communicator of the call, whose end is the end of each wait.
    stream
        The stream.
    windows
        Numbers of the chunks of each window of this rank; a window may have none.

    Raises
    ------
    InvalidRequest
        If this process is no rank of a cluster, or the parts of a chunk have different numbers of rows.
    Exception
        The error of a task.

    Notes
    -----
    A window begins when the one before it is taken. A client on the event loop of the worker submits the tasks and
    releases them, so `close` returns without a wait: a garbage collector may call it on any thread.
    """

    def __init__(self, comm: MPI.Intracomm, stream: Stream, windows: Iterable[Sequence[int]]) -> None:
        worker = current_worker()
        if worker is None:
            raise InvalidRequest(
                "a stream is read by the Dask worker of a rank, and this process is not a rank of a cluster. Call the "
                "function with run_on_ranks()."
            )
        self._worker, self._windows = worker, iter(windows)
        # Another rank may read the same chunk at the same time, as in two trials of a study.
        self._name = f"chunk-{uuid.uuid4().hex}"
        _streams[self._name] = stream
        self._watch: CallState = getattr(comm, "watch", None) or CallState()
        self._client: Future[Client] = self._start(self._connect())
        self._next = self._begin()

    def append_to(self, rows: Rows) -> Rows | None:
        """Return these rows and those of the next window after them; None if there is no other window."""
        if self._next is None:
            return None
        with self._watch.entered("the computing of chunks", counted=False):
            poll(self._next.done, self._watch.check)
        chunks = self._next.result()
        self._next = self._begin()
        return [torch.cat([part, *map(tensor, parts)]) for part, *parts in zip(rows, *chunks, strict=True)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Forget the tasks that are left."""
        del _streams[self._name]
        self._start(self._disconnect())

    def _begin(self) -> Future[list[Arrays]] | None:
        window = next(self._windows, None)
        return None if window is None else self._start(self._compute(window))

    def _start(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        loop: Any = self._worker.loop
        return asyncio.run_coroutine_threadsafe(coroutine, loop.asyncio_loop)

    async def _connect(self) -> Client:
        from distributed import Client

        worker = self._worker
        address, security = worker.scheduler.address, worker.security
        client = Client(address, security=security, asynchronous=True, set_as_default=False, name="stream")
        await client
        return client

    async def _disconnect(self) -> None:
        client = await asyncio.wrap_future(self._client)
        await client.close()

    async def _compute(self, window: Sequence[int]) -> list[Arrays]:
        """Compute chunks on the worker of this rank, and take them from its data."""
        from distributed.client import _wait

        client = await asyncio.wrap_future(self._client)
        # The stream is in this process already, so the messages of a task have no more than its number.
        futures = client.map(
            _compute_chunk,
            [self._name] * len(window),
            window,
            key=[(self._name, number) for number in window],
            workers=[self._worker.address],
            # Before tasks that wait already: a whole training waits for these.
            priority=1,
        )
        await _wait(futures)
        return [await self._value(future, number) for future, number in zip(futures, window, strict=True)]

    async def _value(self, future: Any, number: int) -> Arrays:
        if future.status != "finished":
            try:
                await future
            except Exception as error:
                error.add_note(f"in chunk {number} of a stream")
                raise
        arrays: Any = self._worker.data[future.key]
        return list(arrays)
