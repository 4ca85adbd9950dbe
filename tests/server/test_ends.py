"""What of a server goes on when it is killed, or stopped, and what ends with it."""

from __future__ import annotations

import asyncio
import signal

import psutil
from server.listening import browser
from server.running import BASE, end, log_in, panels_of, start
from support.processes import gone, line_of, until

from workbench.commands import actions
from workbench.deploy import registry
from workbench.errors import ClusterNotFound
from workbench.host.processes import ProcessId


def helpers_of(process):
    """Return the processes of a server that ask heads."""
    children = psutil.Process(process).children()
    return [its for its in children if not gone(its) and "workbench.lab.server.heartbeat_process" in line_of(its)]


async def panel_of(server, record):
    """Return the dashboard of a cluster that somebody looks at."""
    assert (await server.get(f"{BASE}workbench/dashboard/{record.name}/asked")).code == 200
    [panel] = panels_of(server.process.pid, record)
    return panel


async def test_heads_are_asked_by_another_process_while_somebody_looks_which_ends_with_a_server_that_is_killed(cluster):
    server = await log_in(start())
    panel = await panel_of(server, cluster("a"))
    async with browser(server) as page, browser(server) as other:
        assert helpers_of(server.process.pid) == []

        for each in (page, other):
            await each.say(visible=True)
            await each.until(lambda each=each: each.heard[-1]["type"] == "pulse")

        [helper] = helpers_of(server.process.pid)  # one for all browsers
    await asyncio.to_thread(end, server.process, signal.SIGKILL)

    until("all that it has started ends with it", lambda: gone(helper) and gone(panel))


async def test_when_a_server_is_stopped_its_dashboards_end_and_starts_and_stops_go_on(cluster):
    server = await log_in(start())
    panel = await panel_of(server, cluster("a"))
    cluster("stopping", process=ProcessId(**{**vars(ProcessId.here()), "pid": 2**22 + 1}))
    code, told = await server.ask("clusters", "POST", {"ranks": 1, "name": "goes-on"})
    assert (code, told["name"]) == (202, "goes-on")
    assert await server.ask("clusters/stopping", "DELETE") == (202, {})

    await asyncio.to_thread(end, server.process)

    until("the dashboard is gone", lambda: gone(panel))
    until("one is ready without the server", lambda: state("goes-on") == "ready")
    until("one is stopped without the server", lambda: "stopping" not in registry.names())
    stopped = actions.stop(actions.targets("goes-on", everything=False))
    assert stopped.stopped == ["goes-on"]


def state(name):
    try:
        return registry.read(name).state
    except ClusterNotFound:
        return None
