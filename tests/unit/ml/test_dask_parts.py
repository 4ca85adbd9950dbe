"""What a fit on Dask workers reports of a head that is gone; fits themselves are in tests/cluster."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from distributed.core import ConnectionPool, PooledRPCCall

from workbench.errors import HeadUnreachable
from workbench.ml.engine.dask_parts import ActorParts

ADDRESS = "tcp://127.0.0.1:9"


@pytest.fixture
async def parts():
    """Parts whose client has closed its connections."""
    pool = ConnectionPool()
    await pool.close()
    parts = object.__new__(ActorParts)
    parts._fit, parts._addresses = "a fit", (ADDRESS,)
    scheduler = PooledRPCCall(ADDRESS, pool)

    async def run(function, *args, workers):
        return await scheduler.broadcast(msg={}, workers=workers)

    parts._client = SimpleNamespace(scheduler=scheduler, status="closing", run=run)
    return parts


async def test_a_client_that_is_closing_has_lost_its_head(parts):
    with pytest.raises(HeadUnreachable, match="the head of the cluster was lost during a fit"):
        await parts._ask("step", ())


async def test_the_head_is_gone_for_a_client_that_closes_while_the_reason_is_sought(parts):
    assert isinstance(await parts._reason(), HeadUnreachable)


async def test_an_error_of_a_part_is_raised_as_it_is(parts):
    async def run(function, *args, workers):
        raise RuntimeError("of a part")

    parts._client = SimpleNamespace(status="running", run=run)

    with pytest.raises(RuntimeError, match="of a part"):
        await asyncio.wait_for(parts._ask("step", ()), 60)
