"""Batches of a stream, window by window."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from workbench.errors import InvalidRequest
from workbench.torch.chunk_reader import ChunkReader, Rows
from workbench.torch.exchange import cut, exchange, wanted_rows
from workbench.torch.tensors import tensor

if TYPE_CHECKING:
    from mpi4py import MPI

    from workbench.torch.streams import Stream


def stream_batches(
    comm: MPI.Intracomm, stream: Stream, size: int, seed: int, shuffle: str | None, *, drop_last: bool
) -> Iterator[Any]:
    """Yield the part of this rank of each batch; the parameters are those of `workbench.torch.batches`."""
    count = len(stream.chunks)
    order = np.arange(count) if shuffle is None else np.random.default_rng(seed).permutation(count)
    together = shuffle == "exchange"
    windows = rank_windows(order, stream.window, comm.rank, comm.size, together=together)
    none = [tensor(array) for array in stream.empty]
    fed = False
    with ChunkReader(comm, stream, windows) as reader:
        take = _exchanged if together else partial(_own, shuffled=shuffle is not None)
        for rows in take(comm, reader, none, size, seed, drop_last=drop_last):
            fed = True
            yield tuple(rows) if len(rows) > 1 else rows[0]
    if not fed:
        raise InvalidRequest(
            f"size={size} is not valid: the rows of the stream do not fill a batch. Choose a smaller size."
        )


def rank_windows(order: Any, window: int, rank: int, ranks: int, *, together: bool) -> Iterator[Sequence[int]]:
    """Yield the numbers of the chunks in each window of a rank.

    With `together` the ranks divide each window, so the windows are the same on any number of ranks. Otherwise each
    rank has a part of the order, in its own windows.
    """
    if not together:
        order, window = np.array_split(order, ranks)[rank], max(1, window // ranks)
    for start in range(0, len(order), window):
        chunks = order[start : start + window]
        yield (np.array_split(chunks, ranks)[rank] if together else chunks).tolist()


def _exchanged(
    comm: MPI.Intracomm, reader: ChunkReader, left: Rows, size: int, seed: int, *, drop_last: bool
) -> Iterator[Sequence[torch.Tensor]]:
    """Yield batches that are drawn from the rows of all ranks in a window, and from those left of the one before."""
    for number in itertools.count():
        before = len(left[0])
        rows = reader.append_to(left)
        if rows is None:
            break
        parts = comm.allgather((before, len(rows[0]) - before))
        lengths = [sum(part) for part in parts]
        # All rows that are left, then all of the chunks: the order on any number of ranks.
        is_fresh = np.repeat(np.tile([False, True], comm.size), np.ravel(parts))
        places = np.argsort(is_fresh, kind="stable")
        wanted, counts = wanted_rows(lengths, comm.rank, size, [seed, number], "exchange", drop_last=False)
        rows = exchange(comm, rows, lengths, places[wanted])
        full = counts[: sum(lengths) // size]
        yield from cut(rows, full)
        # Copies, so that the memory of the window is freed before the next one is joined.
        left = [part[sum(full) :].clone() for part in rows]
        del rows
    if not drop_last and comm.allreduce(len(left[0])):
        yield left


def _own(
    comm: MPI.Intracomm, reader: ChunkReader, left: Rows, size: int, seed: int, *, shuffled: bool, drop_last: bool
) -> Iterator[Sequence[torch.Tensor]]:
    """Yield batches of the chunks of this rank."""
    each = size // comm.size + (comm.rank < size % comm.size)
    random = np.random.default_rng([seed, comm.rank])
    ready: float = 1
    while ready:
        ended = False
        while len(left[0]) < each and not ended:
            rows = reader.append_to(left)
            ended = rows is None
            if rows is not None:
                order = torch.from_numpy(random.permutation(len(rows[0]))) if shuffled else slice(None)
                left = [part[order] for part in rows]
                del rows
        # All ranks have the same number of batches, since they train together.
        ready = min(comm.allgather(math.inf if ended and not drop_last else len(left[0]) // each))
        if ready == math.inf:
            ready = max(comm.allgather(math.ceil(len(left[0]) / each)))
        starts = range(0, int(ready) * each, each)
        yield from cut(left, [max(0, min(each, len(left[0]) - start)) for start in starts])
        left = [part[int(ready) * each :] for part in left]
