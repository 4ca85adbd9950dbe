"""One block per rank, that stays there.

`place` turns a collection into one block per rank (or per node), `blocks` gives the futures of the
blocks and `map_blocks` calls a function on each of them where it lies.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from workbench.placement import layout, pinning, rows, sources
from workbench.placement.layout import blocks
from workbench.placement.pinning import Pin, PinnedTask
from workbench.session.current_client import current_client

__all__ = ["blocks", "map_blocks", "place"]

if TYPE_CHECKING:
    from distributed import Client, Future


def place(X: Any, *others: Any, per: str = "rank", world: int | None = None, client: Client | None = None) -> Any:
    """Make one block per rank of a collection, pinned to its rank, in rank order.

    Rows are split evenly, as `numpy.array_split` does; all columns stay together. Blocks of arrays are
    C-contiguous and 64-byte aligned numpy arrays, those of sparse matrices are in CSR format.

    Parameters
    ----------
    X
        Dask array of known chunks or numpy array, of shape (rows, ...); sparse matrix of SciPy, or Dask array of them;
        Dask or pandas dataframe or series.
    *others
        More of them with as many rows: row i of each lies on the rank where row i of ``X`` lies.
    per
        ``"rank"`` for one block per rank, ``"node"`` for one per node, on the lowest rank there.
    world
        Index of the MPI world whose ranks get the blocks. Default: those of all worlds; a call on all ranks
        (`run_on_ranks`) runs within one.
    client
        Default: the current client.

    Returns
    -------
    dask.array.Array, dask.dataframe.DataFrame or dask.dataframe.Series
        The placed collection, persisted; a tuple of them if there are ``others``.

    Raises
    ------
    PlacementError
        If this cannot be: no client, no ranks or no such world, an unknown kind of collection, unknown chunks, an empty
        collection, fewer rows than blocks, collections of different lengths, blocks over the memory limit
        of their rank. Nothing is kept on the ranks then.

    Notes
    -----
    Returns before the blocks are there, as ``persist`` does; only dataframes are computed first, because
    their lengths have to be known. Blocks are lost with their rank: place again after a world was started anew.

    Examples
    --------
    >>> X, y = place(features, late)  # doctest: +SKIP
    >>> int(da.sum(y > 0).compute())  # doctest: +SKIP
    81234
    """
    client = current_client(client)
    per = pinning.of_world(per, world)
    ranks = pinning.target_workers(client, per)
    names = ["X", *(f"others[{number}]" for number in range(len(others)))]
    examined = list(map(sources.inspect_collection, names, (X, *others)))
    sources.check(examined, ranks)
    examined = sources.persist(client, examined)
    sources.check(examined, ranks)
    sizes = rows.split(examined[0].rows or 0, len(ranks))
    pins = [Pin(rank.address, size) for rank, size in zip(ranks, sizes, strict=True)]
    placed = tuple(sources.build_blocks(client, source, pins, per) for source in examined)
    return placed if others else placed[0]


def map_blocks(
    fn: Callable[..., Any],
    X: Any,
    *others_or_values: Any,
    client: Client | None = None,
    **kwargs: Any,
) -> list[Future[Any]]:
    """Call a function once per block, on the rank where the block lies.

    Parameters
    ----------
    fn
        Is called as ``fn(block of X, ...)``.
    X
        A placed collection.
    *others_or_values, **kwargs
        A collection placed as ``X`` is replaced by its block; anything else is passed to every call, futures
        (also in a list) as their values. Arrays arrive contiguous and aligned.
    client
        Default: the client that ``X`` belongs to.

    Returns
    -------
    list of Future
        The results in rank order; each stays where it was made.

    Raises
    ------
    PlacementError
        If ``X`` is not placed, or another Dask collection is not placed or is placed differently.
    """
    from dask.utils import funcname

    futures = blocks(X)
    client = current_client(client or futures[0].client)
    pins = layout.block_locations(client, X, futures)
    columns = [futures, *(layout.block_arguments(client, value, pins) for value in others_or_values)]
    named = {name: layout.block_arguments(client, value, pins) for name, value in kwargs.items()}
    name = f"{funcname(fn)}-{uuid.uuid4().hex}"
    calls = [
        PinnedTask(
            key=(name, number),
            function=rows.call_with_aligned,
            args=(fn, *(column[number] for column in columns)),
            kwargs={name: column[number] for name, column in named.items()},
            pin=Pin(pin.address),
        )
        for number, pin in enumerate(pins)
    ]
    return pinning.submit(client, calls, [call.key for call in calls])
