"""Which rows a rank has in each batch, and the exchange that brings them there."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from mpi4py import MPI

# Batches that are cut at once: a view has some hundred bytes of memory beside its rows.
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
