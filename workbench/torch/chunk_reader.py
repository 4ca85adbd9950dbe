"""The chunks of a stream on a rank, whose Dask worker computes the next ones while the rank trains."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Coroutine, Iterable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Self

import torch

from workbench.errors import InvalidRequest
from workbench.mpi.call_state import CallState
from workbench.mpi.polling import poll
from workbench.session.current import current_worker
from workbench.torch.tensors import tensor

if TYPE_CHECKING:
    import numpy.typing as npt
    from distributed import Client
    from mpi4py import MPI

    from workbench.torch.streams import Stream

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
        with self._watch.doing("the computing of chunks", counted=False):
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
