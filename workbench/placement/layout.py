"""Collections with the same layout: block i of each is on the same rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workbench.errors import PlacementError
from workbench.placement import pinning, sources
from workbench.placement.pinning import Pin

if TYPE_CHECKING:
    from distributed import Client, Future


@dataclass(frozen=True)
class AlignedBlocks:
    """A placed collection with the ranks of another collection, but any numbers of rows."""

    collection: Any


def blocks(X: Any) -> list[Future[Any]]:
    """Return the futures of the blocks of a placed collection, in rank order.

    Parameters
    ----------
    X : dask.array.Array, dask.dataframe.DataFrame or dask.dataframe.Series
        A placed collection.

    Returns
    -------
    list of distributed.Future
        The blocks: NumPy arrays, matrices in CSR format, pandas dataframes or series, or, of a collection that was
        placed with `device`, tensors of PyTorch.

    Raises
    ------
    PlacementError
        If the collection was not placed.

    Examples
    --------
    >>> X = workbench.place(np.ones((100_000, 8)))
    >>> [block.result().shape for block in blocks(X)]
    [(25000, 8), (25000, 8), (25000, 8), (25000, 8)]
    """
    if sources.placed_by(X) is None:
        raise PlacementError(f"{sources.type_name(X)} is not placed. Pass the collection that place(...) returned.")
    return sources.futures_in(X)


def block_arguments(client: Client, value: Any, pins: Sequence[Pin]) -> Sequence[Any]:
    """Return an argument for the call of each block: the block of a placed collection, or the same value for all.

    Parameters
    ----------
    value
        A placed collection, `AlignedBlocks`, or any other value.
    pins
        The pins of the calls.

    Raises
    ------
    PlacementError
        If a collection is not placed, or has another layout.
    """
    from dask.base import is_dask_collection

    if isinstance(value, AlignedBlocks):
        futures = blocks(value.collection)
        pins = [Pin(pin.address) for pin in pins]
        locations = [Pin(pin.address) for pin in block_locations(client, value.collection, futures)]
        value = value.collection
    elif is_dask_collection(value):
        futures = blocks(value)
        locations = block_locations(client, value, futures)
    else:
        return [value] * len(pins)
    if locations != list(pins):
        raise PlacementError(
            f"{sources.type_name(value)} is placed in {_layout(locations)}, and X is placed in {_layout(pins)}. Both "
            "need the same layout: place both in one call, X, y = place(X, y)."
        )
    return futures


def block_locations(client: Client, X: Any, futures: Sequence[Future[Any]]) -> list[Pin]:
    """Return the pins of the blocks of a placed collection; raise PlacementError if the client has another cluster."""
    pinning.check_cluster(client, futures, sources.type_name(X))
    cached = [pin for future in futures if (pin := pinning.cached_pin(future))]
    return cached if len(cached) == len(futures) else pinning.rediscover(client, futures, str(sources.placed_by(X)))


def _layout(pins: Sequence[Pin]) -> str:
    listed = ", ".join(f"{pin.rows} on {pin.address}" for pin in pins[:4])
    return f"{len(pins)} blocks (rows: {listed}{', ...' * (len(pins) > 4)})"
