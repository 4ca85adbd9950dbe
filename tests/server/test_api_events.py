"""The messages of the websocket to browsers, and what the server's process does for them itself."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import pytest
from server.listening import browser
from server.running import BASE, end, log_in, start
from server.unreadable import unreadable

from workbench.deploy.folder import ClusterFolder
from workbench.host.processes import ProcessId


async def test_all_browsers_hear_of_clusters_that_others_start_change_and_end(server, cluster):
    async with browser(server) as one, browser(server) as other:
        record = cluster("elsewhere", message="as it began")
        for page in (one, other):
            found = await page.until(lambda page=page: page.clusters.get("elsewhere"))
            assert (found["id"], found["state"], found["message"]) == (record.id, "ready", "as it began")

        ClusterFolder.of(record).write(record.replace(message="as it went on"))
        for page in (one, other):
            await page.until(lambda page=page: page.clusters["elsewhere"]["message"] == "as it went on")

        ClusterFolder.of(record).remove()
        for page in (one, other):
            await page.until(lambda page=page: "elsewhere" not in page.clusters)
        assert [message["type"] for message in one.heard].count("state") == 1


async def test_a_browser_hears_what_has_changed_and_no_more(server, cluster):
    cluster("same")
    async with browser(server) as page:
        assert "same" in page.clusters
        assert page.heard[0].keys() == {"type", "version", "clusters", "broken", "starts", "ended", "time"}

        cluster("new")
        await page.until(lambda: "new" in page.clusters)

        assert [its["name"] for its in page.heard[-1]["clusters"]] == ["new"]
        assert page.heard[-1].keys() == {"type", "clusters", "gone", "broken", "starts", "time"}


@pytest.mark.usefixtures("own_registry")
async def test_no_cluster_goes_while_the_registry_cannot_be_read(cluster):
    server = await log_in(start())
    cluster("there")
    async with browser(server) as page:
        await page.until(lambda: "there" in page.clusters)
        with unreadable():
            [trouble] = await page.until(lambda: page.broken)
            code, told = await server.ask("clusters")
        await page.until(lambda: not page.broken)

        assert [each for each in page.heard if each.get("gone")] == []
    assert (trouble["name"], "must be a folder that you own" in trouble["error"]) == ("", True)
    assert (code, [its["name"] for its in told["clusters"]], told["broken"]) == (200, ["there"], [trouble])
    end(server.process)


async def test_a_cluster_whose_head_was_killed_goes(server, cluster):
    head = await asyncio.create_subprocess_exec(sys.executable, "-c", "input()", stdin=subprocess.PIPE)
    cluster("killed", process=ProcessId.of(head.pid))
    async with browser(server) as page:
        await page.until(lambda: "killed" in page.clusters)

        head.kill()
        await head.communicate()

        await page.until(lambda: "killed" not in page.clusters)


async def test_who_looks_away_hears_of_no_pulses(server, cluster):
    async with browser(server) as page, browser(server) as other:
        for each, seen in ((page, True), (other, ["after-that"])):
            await each.say(visible=seen)
            await each.until(lambda each=each: each.heard[-1]["type"] == "pulse")
        await page.say(visible=False)
        cluster("after-that")
        await page.until(lambda: "after-that" in page.clusters)
        page.heard.clear()

        for _ in range(2):
            other.heard.clear()
            await other.until(lambda: other.heard and other.heard[-1]["type"] == "pulse")
        cluster("much-later")
        await page.until(lambda: "much-later" in page.clusters)

        assert {message["type"] for message in page.heard} == {"changed"}


async def test_the_server_loads_neither_dask_nor_mpi_nor_panel_for_any_of_it(server, cluster):
    cluster("seen")
    async with browser(server) as page:
        await page.say(visible=True)
        await page.until(lambda: page.heard[-1]["type"] == "pulse")
    for path in ("clusters", "kernels", "form", "clusters/seen/logs"):
        await server.ask(path)
    await server.ask("check", "POST", {"ranks": 2})

    answer = await server.get(f"{BASE}loaded")

    heavy = {"distributed", "mpi4py", "panel", "dask_jobqueue", "bokeh", "pandas"}
    assert heavy & set(json.loads(answer.body)["modules"]) == set()
