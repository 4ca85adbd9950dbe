"""The Dask clients of a cluster."""

from __future__ import annotations

import asyncio
import logging

import pytest
from distributed import Client, LocalCluster
from support.patience import DEADLINE

from workbench.session import clients


async def no_end():
    """Return no reason of an end."""


async def test_an_interrupt_before_a_gather_has_begun_cancels_neither_later_nor_other_ones():
    async with (
        LocalCluster(n_workers=1, processes=False, dashboard_address=None, asynchronous=True) as cluster,
        Client(cluster, asynchronous=True) as client,
    ):
        clients.mend(cluster, no_end)
        future = client.submit(sum, [1, 2], pure=False)
        await future
        gathering = asyncio.ensure_future(client.gather(future))
        while client._gather_future is None:  # noqa: ASYNC110  (there is no event for this)
            await asyncio.sleep(0)
        of_another_thread = asyncio.ensure_future(client.gather(future))
        await asyncio.sleep(0)
        gathering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gathering

        async with asyncio.timeout(DEADLINE):
            assert await client.gather(future) == await of_another_thread == 3


async def test_an_attempt_to_reach_a_scheduler_that_a_close_ends_is_not_logged(monkeypatch, caplog):
    begun, logger = asyncio.Event(), logging.getLogger("distributed.client")

    async def reconnect(_):
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            logger.exception("as Dask does")
            raise

    monkeypatch.setattr(Client, "_reconnect", reconnect)
    async with (
        LocalCluster(n_workers=0, processes=False, dashboard_address=None, asynchronous=True) as cluster,
        Client(cluster, asynchronous=True) as client,
    ):
        clients.mend(cluster, no_end)
        with monkeypatch.context() as patch:
            patch.setattr(client, "status", "connecting")
            patch.setattr(logger, "handlers", [caplog.handler])
            reconnecting = asyncio.ensure_future(client._reconnect())
            async with asyncio.timeout(DEADLINE):
                await begun.wait()
            reconnecting.cancel()
            await asyncio.wait([reconnecting])
    assert [each.getMessage() for each in caplog.records if each.name == logger.name] == []
