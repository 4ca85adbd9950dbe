"""Which rows a rank has in each batch, of placed blocks or of a stream, and the exchange that brings them there."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from workbench.errors import InvalidRequest
from workbench.torch.streams import ChunkReader, Rows
from workbench.torch.tensors import tensor

if TYPE_CHECKING:
    import numpy.typing as npt
    from mpi4py import MPI

    from workbench.torch.streams import Stream


# Batches that are cut in one step: a view has some hundred bytes of memory beside its rows.
_VIEWS = 256


def wanted_rows(
    lengths: Sequence[int], rank: int, size: int, seed: int | Sequence[int], shuffle: str | None, *, drop_last: bool
) -> tuple[npt.NDArray[np.int64], list[int]]:
    """Return the rows of this rank in all batches, one batch after another, and their number in each batch.

    Rows are positions in the rows of all ranks with ``shuffle="exchange"``, otherwise in the block of the rank.
    """
    import numpy as np

    ranks = len(lengths)
    shares = [len(share) for share in np.array_split(np.arange(size), ranks)]
    each = shares[rank]
    if shuffle == "exchange":
        rows = np.random.default_rng(seed).permutation(sum(lengths))
        count, first = len(rows) // size, sum(shares[:rank])
        rest = rows[count * size :]
        rows = rows[: count * size].reshape(-1, size)[:, first : first + each].ravel()
        if drop_last or not len(rest):
            return rows, [each] * count
        last = np.array_split(rest, ranks)[rank]
        return np.concatenate([rows, last]), [each] * count + [len(last)]
    own = np.arange(lengths[rank])
    if shuffle == "local":
        np.random.default_rng([seed, rank]).shuffle(own)
    # All ranks have the same number of batches, since they train together.
    counts = [length / share for length, share in zip(lengths, shares, strict=True)]
    count = math.floor(min(counts)) if drop_last else math.ceil(max(counts))
    return own[: count * each], [max(0, min(each, len(own) - start)) for start in range(0, count * each, each)]


def exchange(comm: MPI.Intracomm, parts: list[Any], lengths: Sequence[int], rows: npt.NDArray[np.int64]) -> list[Any]:
    """Return rows of all ranks, in the order of their positions in `rows`."""
    import numpy as np
    import torch
    from mpi4py import MPI

    from workbench.torch.buffers import array, flat, to_write, write

    if comm.size == 1:
        return [select(part, torch.from_numpy(rows)) for part in parts]
    starts = np.concatenate([[0], np.cumsum(lengths)])
    owners = np.searchsorted(starts, rows, side="right") - 1
    if comm.size < 1 << 15:
        owners = owners.astype(np.int16)  # NumPy sorts these several times faster
    order = np.argsort(owners, kind="stable")
    mine = np.bincount(owners, minlength=comm.size)
    theirs = np.empty_like(mine)
    comm.Alltoall(mine, theirs)
    asked = np.empty(theirs.sum(), np.int64)
    comm.Alltoallv([rows[order], mine, MPI.INT64_T], [asked, theirs, MPI.INT64_T])
    places = torch.from_numpy(asked - starts[comm.rank])
    back = torch.empty(len(rows), dtype=torch.int64)
    back[torch.from_numpy(order)] = torch.arange(len(rows))
    exchanged = []
    for part in parts:
        sent = select(part, places)
        received = part.new_empty((len(rows), *part.shape[1:]))
        each = math.prod(part.shape[1:]) * received.element_size()
        row = to_write(received)
        comm.Alltoallv([array(flat(sent)), theirs * each, MPI.BYTE], [array(row), mine * each, MPI.BYTE])
        write(row, received)
        exchanged.append(select(received, back))
    return exchanged


def cut(parts: Sequence[Any], lengths: Sequence[int]) -> Iterator[tuple[Any, ...]]:
    """Yield the first rows of each part, then the next ones, with these lengths."""
    start = 0
    for number in range(0, len(lengths), _VIEWS):
        some = lengths[number : number + _VIEWS]
        end = start + sum(some)
        # One call for many views takes half of the time of as many slices. Other splits forbid to write to their views.
        yield from zip(*(part[start:end].unsafe_split_with_sizes(some) for part in parts), strict=True)
        start = end


def select(part: Any, places: Any) -> Any:
    """Return ``part[places]``, which takes several times as long."""
    # `index_select` has some types of elements only for two dimensions.
    return part[:, None].flatten(1).index_select(0, places.to(part.device)).view(len(places), *part.shape[1:])


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
        allowed = "a smaller size: the rows of the stream do not fill a batch"
        raise InvalidRequest(option="size", given=size, allowed=allowed)


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
