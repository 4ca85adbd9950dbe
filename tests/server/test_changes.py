"""What is being done to a cluster, as the server keeps it."""

from __future__ import annotations

import asyncio

import pytest

from workbench.lab.server.actions import AlreadyPending, PendingActions


@pytest.mark.usefixtures("subcommands")
async def test_a_cluster_that_is_being_scaled_can_be_stopped_and_nothing_else(cluster):
    news: asyncio.Queue[None] = asyncio.Queue()
    its, record = PendingActions(lambda: news.put_nowait(None)), cluster("scaled")

    its.begin(record, "scale", ["4"])
    for subcommand in ("scale", "restart"):
        with pytest.raises(AlreadyPending):
            its.begin(record, subcommand)

    its.dismiss(record.id)
    assert its.describe()[record.id]["busy"] == "scaling", "only what is over is dismissed"
    its.begin(record, "stop")
    assert its.describe()[record.id]["busy"] == "stopping"
    with pytest.raises(AlreadyPending):
        its.begin(record, "stop")
    while its.describe()[record.id]["busy"]:
        await news.get()
    assert its.describe()[record.id]["error"] is None


async def test_what_was_asked_for_as_the_server_stops_is_done_all_the_same(subcommands, cluster):
    its = PendingActions(lambda: None)

    its.begin(cluster("stopped"), "stop")
    its.close()

    [process] = subcommands
    assert (await process.ended()).out == "{}\n"
