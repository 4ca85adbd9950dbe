"""What keeps running when a server is killed, or stopped, and what ends with the server."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from server.listening import browser
from server.running import BASE, end, log_in, observers_of, start
from support.processes import gone, line_of, until

from workbench.commands import actions
from workbench.deploy import registry
from workbench.errors import ClusterNotFound
from workbench.host.processes import ProcessId


async def show(server, record):
    """Look at the dashboard of a cluster."""
    assert (await server.get(f"{BASE}workbench/dashboard/{record.name}/asked")).code == 200


async def test_one_process_asks_heads_and_shows_clusters_to_all_and_ends_with_a_server_that_is_killed(cluster):
    server = await log_in(start())
    async with browser(server) as page, browser(server) as other:
        assert observers_of(server.process.pid) == []

        for each in (page, other):
            await each.say(visible=True)
            await each.until(lambda each=each: each.heard[-1]["type"] == "pulse")
        for name in ("a", "b"):
            await show(server, cluster(name))

        [observer] = observers_of(server.process.pid)
        folder = Path(line_of(observer)[-2]).parent
        until("it has a folder for sockets", folder.is_dir)
    await asyncio.to_thread(end, server.process, signal.SIGKILL)

    until("it ends with the server", lambda: gone(observer))
    until("its sockets are removed", lambda: not folder.exists())


async def test_when_a_server_is_stopped_its_dashboards_end_and_starts_and_stops_go_on(cluster):
    server = await log_in(start())
    await show(server, cluster("a"))
    [observer] = observers_of(server.process.pid)
    cluster("stopping", process=ProcessId(**{**vars(ProcessId.here()), "pid": 2**22 + 1}))
    code, told = await server.ask("clusters", "POST", {"ranks": 1, "name": "goes-on"})
    assert (code, told["name"]) == (202, "goes-on")
    assert await server.ask("clusters/stopping", "DELETE") == (202, {})

    await asyncio.to_thread(end, server.process)

    until("the observer is gone", lambda: gone(observer))
    until("one is ready without the server", lambda: state("goes-on") == "ready")
    until("one is stopped without the server", lambda: "stopping" not in registry.names())
    stopped = actions.stop(actions.targets("goes-on", everything=False))
    assert stopped.stopped == ["goes-on"]


def state(name):
    try:
        return registry.read(name).state
    except ClusterNotFound:
        return None
