"""Collections that lie alike: block i of each on the same rank."""

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
    """A placed collection whose blocks lie on the ranks of another's, and need not have as many rows."""

    collection: Any


def blocks(X: Any) -> list[Future[Any]]:
    """Return the futures of the blocks of a placed collection, in rank order.

    Raises
    ------
    PlacementError
        If the collection was not placed.
    """
    if sources.placed_by(X) is None:
        raise PlacementError(f"{sources.type_name(X)} that is not placed was given: use what place(...) returned")
    return sources.futures_in(X)


def block_arguments(client: Client, value: Any, its_pins: Sequence[Pin]) -> Sequence[Any]:
    """Return what the call for each block gets of an argument.

    Parameters
    ----------
    value
        A placed collection, also one as `AlignedBlocks`, gives each call its block; anything else is given to all.
    its_pins
        Where the blocks lie that the calls are for.

    Raises
    ------
    PlacementError
        If a collection is not placed, or lies elsewhere.
    """
    from dask.base import is_dask_collection

    if isinstance(value, AlignedBlocks):
        futures = blocks(value.collection)
        its_pins = [Pin(pin.address) for pin in its_pins]
        result = [Pin(pin.address) for pin in block_locations(client, value.collection, futures)]
        value = value.collection
    elif is_dask_collection(value):
        futures = blocks(value)
        result = block_locations(client, value, futures)
    else:
        return [value] * len(its_pins)
    if result != list(its_pins):
        raise PlacementError(
            f"{sources.type_name(value)} is placed in {_layout(result)}, X in {_layout(its_pins)}: both have to lie "
            "alike, place them in one call, X, y = place(X, y)"
        )
    return futures


def block_locations(client: Client, X: Any, futures: Sequence[Future[Any]]) -> list[Pin]:
    """Return where the blocks of a placed collection lie."""
    known = [pin for future in futures if (pin := pinning.cached_pin(future))]
    return known if len(known) == len(futures) else pinning.rediscover(client, futures, str(sources.placed_by(X)))


def _layout(pins: Sequence[Pin]) -> str:
    listed = ", ".join(f"{pin.rows} on {pin.address}" for pin in pins[:4])
    return f"{len(pins)} blocks (rows: {listed}{', ...' * (len(pins) > 4)})"
