"""Batches of placed blocks and of streams, which do not depend on the number of ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any

from workbench.errors import InvalidRequest
from workbench.text import count
from workbench.torch.context import require_torch
from workbench.torch.exchange import cut, exchange, select, wanted_rows
from workbench.torch.streams import Stream
from workbench.torch.tensors import tensor

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from mpi4py import MPI

SHUFFLES = ("exchange", "local")


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
    X : block of shape (rows, ...), or Stream
        Argument of `tensor`; ranks may have different numbers of rows. Or a result of `stream`, with its labels and
        weights.
    y : block of shape (rows, ...), default=None
        Labels of the rows.
    weight : block of shape (rows, ...), default=None
        Weights of the rows, or other values beside `y`.
    size : int
        Rows of a batch on all ranks together, at least one for each rank. If `size` is not a multiple of the number of
        ranks, the first ranks have one row more than the others.
    seed : int, default=0
        Seed of the order of the rows, the same on all ranks. The number of the epoch as seed gives each epoch another
        order.
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
        On all ranks, if these pass different options or, with ``shuffle="exchange"``, rows of different types.

    Notes
    -----
    The order is ``numpy.random.default_rng(seed).permutation(rows)`` of the rows of all ranks in rank order; rank *r*
    has the *r*-th part of each batch. An exchange needs memory for a second copy of the block.

    Examples
    --------
    >>> @workbench.spmd
    ... def shapes(comm, X, y):
    ...     return [(*rows.shape, *labels.shape) for rows, labels in batches(comm, X, y, size=8, seed=0)]
    >>> shapes(*workbench.place(np.ones((16, 3)), np.ones(16)))[0]
    [(2, 3, 2), (2, 3, 2)]
    """
    if shuffle is not None and shuffle not in SHUFFLES:
        raise InvalidRequest(option="shuffle", given=shuffle, allowed=(*SHUFFLES, "None"))
    if size < comm.size:
        raise InvalidRequest(option="size", given=size, allowed=f"at least {comm.size}, one row for each rank")
    require_seed(seed)
    require_torch()
    options: dict[str, Any] = {"size": size, "shuffle": shuffle, "drop_last": drop_last}
    if isinstance(X, Stream):
        from workbench.torch.exchange import stream_batches

        if y is not None or weight is not None:
            raise InvalidRequest("y and weight belong to the stream. Pass stream(X, y, weight), and omit y and weight.")
        _agreed(comm, 0, options | ({"seed": seed} if shuffle else {}))
        return stream_batches(comm, X, size, seed, shuffle, drop_last=drop_last)
    parts = [tensor(block) for block in (X, y, weight) if block is not None]
    if len(set(map(len, parts))) > 1:
        raise InvalidRequest(f"X, y and weight have {[*map(len, parts)]} rows. Pass the same number of rows.")
    if shuffle == "exchange":
        columns = [f"{str(part.dtype).removeprefix('torch.')} of shape {tuple(part.shape[1:])}" for part in parts]
        options |= {"seed": seed, "columns": columns}
    lengths = _agreed(comm, len(parts[0]), options)
    rows, counts = wanted_rows(lengths, comm.rank, size, seed, shuffle, drop_last=drop_last)
    if not counts and sum(lengths) < comm.size:
        raise InvalidRequest(
            f"the ranks have {count(sum(lengths), 'row')} for {comm.size} ranks, and a batch has a row for each rank. "
            "Pass more rows, use fewer ranks, or fit in this process."
        )
    if not counts:
        allowed = f"a smaller size: the ranks have {lengths} rows, which do not fill a batch"
        raise InvalidRequest(option="size", given=size, allowed=allowed)
    return _yielded(comm, parts, lengths, rows, counts, shuffle=shuffle)


def require_seed(seed: Any) -> None:
    """Raise InvalidRequest unless a seed is a whole number; NumPy would draw another one for None, on each rank."""
    if not isinstance(seed, Integral) or seed < 0:
        raise InvalidRequest(option="seed", given=seed, allowed="a whole number from 0 on, the same on all ranks")


def _agreed(comm: MPI.Intracomm, rows: int, options: dict[str, Any]) -> list[int]:
    """Return the rows of each rank; raise InvalidRequest on all ranks if these pass different options."""
    said = comm.allgather((rows, options))
    first = said[0][1]
    for rank, (_, passed) in enumerate(said):
        if differing := [name for name in passed if passed[name] != first.get(name)]:
            name = differing[0]
            raise InvalidRequest(
                f"batches() takes the same {name} on all ranks. Rank 0 passes {first.get(name)!r}, and rank {rank} "
                f"passes {passed[name]!r}."
            )
    return [rows for rows, _ in said]


def _yielded(
    comm: MPI.Intracomm,
    parts: list[Any],
    lengths: Sequence[int],
    rows: npt.NDArray[np.int64],
    counts: list[int],
    *,
    shuffle: str | None,
) -> Iterator[Any]:
    import torch

    exchanged = shuffle == "exchange" and comm.size > 1
    if exchanged:
        parts = exchange(comm, parts, lengths, rows)
    if exchanged or shuffle is None:
        taken = cut(parts, counts)
    else:
        each = torch.from_numpy(rows).split(counts)
        taken = (tuple(select(part, places) for part in parts) for places in each)
    yield from taken if len(parts) > 1 else (rows for (rows,) in taken)
