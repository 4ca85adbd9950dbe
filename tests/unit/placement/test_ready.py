"""The wait for the arguments of a call or a cell."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from workbench.errors import CollectiveFailed, HeadUnreachable, RankLost
from workbench.placement.pinning import Pin, cache_pin, wait_computed

PLACE = "mpi://192.0.2.1:1234"


class Canceled:
    """A future that Dask has canceled, with a client that knows the addresses of the ranks."""

    key, status = "placed-rank-0", "cancelled"

    def __init__(self, *addresses: str) -> None:
        async def identity():
            return {"workers": dict.fromkeys(addresses)}

        self.client = SimpleNamespace(scheduler=SimpleNamespace(identity=identity))

    def cancelled(self) -> bool:
        return True


class Closed(Canceled):
    """A future whose client was closed."""

    def __init__(self) -> None:
        self.client = SimpleNamespace(scheduler=None)


class Closing(Canceled):
    """A future whose client is closed during the request for the addresses."""

    def __init__(self) -> None:
        async def identity():
            raise RuntimeError("ConnectionPool is closed")

        self.client = SimpleNamespace(scheduler=SimpleNamespace(identity=identity))


@pytest.mark.parametrize("kind", [Closed, Closing])
async def test_the_wait_for_a_block_of_a_closed_client_reports_that_the_client_was_closed(kind):
    block = kind()
    cache_pin(block, Pin(PLACE, 1))

    with pytest.raises(HeadUnreachable):
        await wait_computed([block], "an argument of f")


@pytest.mark.parametrize(
    ("addresses", "error", "reason"),
    [([], RankLost, "was lost with its rank"), ([PLACE], CollectiveFailed, "was released")],
)
async def test_a_block_that_is_lost_with_its_rank_is_no_block_that_was_released(addresses, error, reason):
    block = Canceled(*addresses)
    cache_pin(block, Pin(PLACE, 1))

    with pytest.raises(error, match=f"'placed-rank-0', an argument of f, {reason}"):
        await wait_computed([block], "an argument of f")
