"""Placed blocks as tensors, and as batches that do not depend on the number of ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from workbench.errors import InvalidRequest, did_you_mean
from workbench.torch.context import require_torch

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from mpi4py import MPI

SHUFFLES = ("exchange", "local")


def tensor(block: Any) -> Any:
    """Return a tensor that shares the memory of a block.

    Parameters
    ----------
    block : numpy.ndarray, pandas.DataFrame, pandas.Series or torch.Tensor
        Block of shape (rows, ...) of numbers or booleans. The columns of a frame are converted to their common type.

    Returns
    -------
    torch.Tensor
        Tensor of the same shape and type. It shares the memory of an array, so writes to the tensor change the block;
        a tensor of a read-only array must not be written to. Frames are copied if pandas copies them.

    Raises
    ------
    InvalidRequest
        If PyTorch is not installed, the block is sparse, or PyTorch has no such elements, for example text.

    Examples
    --------
    >>> rows = tensor(X)  # doctest: +SKIP
    """
    require_torch()
    import numpy as np
    import torch

    if isinstance(block, torch.Tensor):
        return block
    array = block.to_numpy() if hasattr(block, "to_numpy") else block
    if not isinstance(array, np.ndarray):
        raise InvalidRequest(
            f"tensor() takes a block of an array or a frame, not {type(array).__name__}: convert it before, a sparse "
            "one by toarray()"
        )
    if array.dtype.kind not in "biufc" or array.dtype.name in {"float128", "complex256"}:
        raise InvalidRequest(
            f"PyTorch has no tensors of {array.dtype}: convert the block before, e.g. by astype('float32')"
        )
    array = np.ascontiguousarray(array)
    # PyTorch has no read-only tensors, and only from_numpy warns of read-only arrays.
    return torch.from_numpy(array) if array.flags.writeable else torch.from_dlpack(array)


def batches(
    comm: MPI.Intracomm,
    X: Any,
    y: Any = None,
    weight: Any = None,
    *,
    size: int,
    seed: int = 0,
    shuffle: str | None = "exchange",
    drop_last: bool = True,
) -> Iterator[Any]:
    """Yield the part of this rank of each batch of an epoch; the first step is collective.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        Communicator of the call.
    X : block of shape (rows, ...)
        Argument of `tensor`; ranks may have different numbers of rows.
    y : block of shape (rows, ...), default=None
        Labels of the rows.
    weight : block of shape (rows, ...), default=None
        Weights of the rows, or other values beside `y`.
    size : int
        Rows of a batch on all ranks together, at least one for each rank. If `size` is not a multiple of the number of
        ranks, the first ranks have one row more than the others.
    seed : int, default=0
        Seed of the order of the rows. The number of the epoch as seed gives each epoch another order.
    shuffle : {"exchange", "local"} or None, default="exchange"
        ``"exchange"``: rows are drawn from all ranks, and sent to their ranks before the first batch (``Alltoallv``).
        The batches are the same on any number of ranks. ``"local"``: each rank shuffles the rows of its block, and
        sends none. None: each rank takes the rows of its block in their order.
    drop_last : bool, default=True
        Whether rows that do not fill a batch are left out of this epoch. Otherwise ranks may have different numbers of
        rows in the last batch, or none, and the mean of the losses of the ranks is not the mean over the rows.

    Yields
    ------
    torch.Tensor or tuple of torch.Tensor
        Rows of this rank, of shape (size / ranks, ...), with the values of `y` and `weight` if given. With
        ``shuffle=None`` the tensors share the memory of the blocks.

    Raises
    ------
    InvalidRequest
        If an option is not valid, the blocks have different numbers of rows, or the ranks have fewer rows than a batch.

    Notes
    -----
    The order is ``numpy.random.default_rng(seed).permutation(rows)`` of the rows of all ranks in rank order; rank *r*
    has the *r*-th part of each batch. An exchange needs memory for a second copy of the block.

    Examples
    --------
    >>> for epoch in range(3):  # doctest: +SKIP
    ...     for rows, labels in batches(comm, X, y, size=256, seed=epoch):
    ...         ...
    """
    if shuffle is not None and shuffle not in SHUFFLES:
        raise InvalidRequest(f"shuffle={shuffle!r} is not valid: {did_you_mean(str(shuffle), SHUFFLES)}, or None")
    if size < comm.size:
        raise InvalidRequest(f"size={size} is not valid. Choose at least {comm.size}, a row for each rank.")
    parts = [tensor(block) for block in (X, y, weight) if block is not None]
    if len(set(map(len, parts))) > 1:
        raise InvalidRequest(f"X, y and weight have {[*map(len, parts)]} rows: they have to go together")
    lengths = comm.allgather(len(parts[0]))
    wanted = _wanted(lengths, comm.rank, size, seed, shuffle, drop_last=drop_last)
    if not wanted:
        raise InvalidRequest(f"size={size} is not valid: the ranks have {lengths} rows, which do not fill a batch")
    return _yielded(comm, parts, lengths, wanted, shuffle)


def _wanted(
    lengths: Sequence[int], rank: int, size: int, seed: int, shuffle: str | None, *, drop_last: bool
) -> list[npt.NDArray[np.int64]]:
    """Return the rows of this rank in each batch, as positions in all rows or in the block of the rank."""
    import numpy as np

    ranks = len(lengths)
    parts = np.array_split(np.arange(size), ranks)
    if shuffle == "exchange":
        rows = np.random.default_rng(seed).permutation(sum(lengths))
        full = len(rows) // size * size
        found = list(rows[:full].reshape(-1, size)[:, parts[rank]])
        return found if drop_last or full == len(rows) else [*found, np.array_split(rows[full:], ranks)[rank]]
    each = len(parts[rank])
    own = np.arange(lengths[rank])
    if shuffle == "local":
        np.random.default_rng([seed, rank]).shuffle(own)
    # All ranks have the same number of batches, since they train together.
    counts = [length / len(part) for length, part in zip(lengths, parts, strict=True)]
    count = math.floor(min(counts)) if drop_last else math.ceil(max(counts))
    return [own[number * each : (number + 1) * each] for number in range(count)]


def _yielded(
    comm: MPI.Intracomm,
    parts: list[Any],
    lengths: Sequence[int],
    wanted: list[npt.NDArray[np.int64]],
    shuffle: str | None,
) -> Iterator[Any]:
    import numpy as np
    import torch

    exchanged = shuffle == "exchange" and comm.size > 1
    if exchanged:
        parts = _exchanged(comm, parts, lengths, np.concatenate(wanted))
    ends = np.cumsum([len(rows) for rows in wanted]).tolist()
    for rows, end in zip(wanted, ends, strict=True):
        if exchanged or shuffle is None:
            taken = tuple(part[end - len(rows) : end] for part in parts)
        else:
            places = torch.from_numpy(rows)
            taken = tuple(_taken(part, places) for part in parts)
        yield taken if len(taken) > 1 else taken[0]


def _exchanged(comm: MPI.Intracomm, parts: list[Any], lengths: Sequence[int], rows: npt.NDArray[np.int64]) -> list[Any]:
    """Return rows of all ranks, in the order of their positions in `rows`."""
    import numpy as np
    import torch
    from mpi4py import MPI

    starts = np.concatenate([[0], np.cumsum(lengths)])
    owners = np.searchsorted(starts, rows, side="right") - 1
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
        sent = _taken(part, places)
        received = part.new_empty((len(rows), *part.shape[1:]))
        each = math.prod(part.shape[1:]) * received.element_size()
        messages = [
            [block.reshape(-1).view(torch.uint8).numpy(), counts * each, MPI.BYTE]
            for block, counts in ((sent, theirs), (received, mine))
        ]
        comm.Alltoallv(*messages)
        exchanged.append(_taken(received, back))
    return exchanged


def _taken(part: Any, places: Any) -> Any:
    """Return ``part[places]``, which takes several times as long."""
    # `index_select` has some types of elements only for two dimensions.
    return part[:, None].flatten(1).index_select(0, places).view(len(places), *part.shape[1:])
