"""One block per rank, that stays there.

`place` turns a collection into one block per rank (or per node), `blocks` gives the futures of the
blocks and `map_blocks` calls a function on each of them where it lies.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from workbench.errors import PlacementError
from workbench.placing import pinning, rows, source
from workbench.placing.pinning import Call, Pin

if TYPE_CHECKING:
    from distributed import Client, Future


def place(X: Any, *others: Any, per: str = "rank", client: Client | None = None) -> Any:
    """Make one block per rank of a collection, pinned to its rank, in rank order.

    Rows are split evenly, as `numpy.array_split` does; all columns stay together. Blocks of arrays are
    C-contiguous and 64-byte aligned numpy arrays.

    Parameters
    ----------
    X
        Dask array of known chunks or numpy array, of shape (rows, ...); Dask or pandas dataframe or series.
    *others
        More of them with as many rows: row i of each lies on the rank where row i of ``X`` lies.
    per
        ``"rank"`` for one block per rank, ``"node"`` for one per node, on the lowest rank there.
    client
        Default: the current client.

    Returns
    -------
    dask.array.Array, dask.dataframe.DataFrame or dask.dataframe.Series
        The placed collection, persisted; a tuple of them if there are ``others``.

    Raises
    ------
    PlacementError
        If this cannot be: no client or no ranks, an unknown kind of collection, unknown chunks, an empty
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
    client = pinning.connected(client)
    ranks = pinning.targets(client, per)
    names = ["X", *(f"others[{number}]" for number in range(len(others)))]
    sources = [source.examine(name, given) for name, given in zip(names, (X, *others), strict=True)]
    source.check(sources, ranks)
    sources = source.persist(client, sources)
    source.check(sources, ranks)
    sizes = rows.split(sources[0].rows or 0, len(ranks))
    pins = [Pin(rank.address, size) for rank, size in zip(ranks, sizes, strict=True)]
    placed = tuple(source.assemble(client, one, pins, per) for one in sources)
    return placed if others else placed[0]


def blocks(X: Any) -> list[Future[Any]]:
    """Return the futures of the blocks of a placed collection, in rank order.

    Raises
    ------
    PlacementError
        If the collection was not placed.
    """
    if source.placed_per(X) is None:
        raise PlacementError(f"{source.describe(X)} that is not placed was given: use what place(...) returned")
    return source.futures_in(X)


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
    client = pinning.connected(client or futures[0].client)
    pins = _pins(client, X, futures)
    columns = [futures, *(_per_block(client, value, pins) for value in others_or_values)]
    named = {name: _per_block(client, value, pins) for name, value in kwargs.items()}
    name = f"{funcname(fn)}-{uuid.uuid4().hex}"
    calls = [
        Call(
            key=(name, number),
            function=rows.call,
            args=(fn, *(column[number] for column in columns)),
            kwargs={name: column[number] for name, column in named.items()},
            pin=Pin(pin.address),
        )
        for number, pin in enumerate(pins)
    ]
    return pinning.submit(client, calls, [call.key for call in calls])


def _per_block(client: Client, value: Any, pins: Sequence[Pin]) -> Sequence[Any]:
    """Return what each call gets of an argument."""
    from dask.base import is_dask_collection

    if not is_dask_collection(value):
        return [value] * len(pins)
    futures = blocks(value)
    its_pins = _pins(client, value, futures)
    if its_pins != pins:
        raise PlacementError(
            f"{source.describe(value)} is placed in {_layout(its_pins)}, X in {_layout(pins)}: both have to lie alike, "
            "place them in one call, X, y = place(X, y)"
        )
    return futures


def _pins(client: Client, X: Any, futures: Sequence[Future[Any]]) -> list[Pin]:
    pins = [pin for future in futures if (pin := pinning.recall(future))]
    return pins if len(pins) == len(futures) else pinning.find(client, futures, str(source.placed_per(X)))


def _layout(pins: Sequence[Pin]) -> str:
    listed = ", ".join(f"{pin.rows} on {pin.address}" for pin in pins[:4])
    return f"{len(pins)} blocks (rows: {listed}{', ...' * (len(pins) > 4)})"
