"""A cluster of two ranks through the API: started, followed, scaled, restarted, stopped, as a browser does it."""

from __future__ import annotations

import psutil
import pytest
from server.listening import browser
from support.processes import until

from workbench.deploy import registry
from workbench.deploy.folder import ClusterFolder, clusters_folder


async def begin(server, page, **options):
    """Ask for a cluster; return the start's id."""
    code, start = await server.ask("clusters", "POST", options)
    assert (code, start["state"]) == (202, "starting")
    await page.until(lambda: page.start(start["id"]))
    return start["id"]


async def over(page, key):
    """Return how a start has ended."""
    return await page.until(lambda: page.start(key)["state"] != "starting" and page.start(key))


async def done(page, name):
    """Wait until what is being done to a cluster is done; return the cluster."""
    await page.until(lambda: page.clusters[name]["busy"] is None)
    return page.clusters[name]


async def test_the_life_of_a_cluster(server):
    async with browser(server) as page:
        await page.say(visible=True)
        key = await begin(server, page, ranks=2, name="life", threads=1, idle_timeout="5 minutes")
        start = await over(page, key)
        cluster = await page.until(lambda: page.clusters["life"]["state"] == "ready" and page.clusters["life"])

        assert (start["state"], start["name"]) == ("ready", "life")
        assert (cluster["up"], cluster["ranks"], cluster["idle_timeout"]) == (2, 2, 300)

        pulse = await page.until(lambda: page.pulses.get("life", {}).get("memory") and page.pulses["life"])
        assert pulse["memory"] > 10e6
        assert pulse["clients"] == 0
        assert pulse["idle"] >= 0

        code, told = await server.ask("clusters/life/logs")
        assert code == 200
        assert {"head", "world-0", "rank-0", "rank-1"} <= {file["name"] for file in told["files"]}
        assert "2 ranks" in (await server.ask("clusters/life/logs/head?from=-1000"))[1]["text"]

        assert await server.ask("clusters/life/scale", "POST", {"ranks": 1_000_000}) == (202, {})
        refused = await server.ask("clusters/life/restart", "POST")
        assert refused == (
            409,
            {"message": "cluster 'life' is already scaling. Wait for the end of that action.", "log": None},
        )
        await page.until(lambda: page.clusters["life"]["busy"] == "scaling")
        assert "is not valid" in (await done(page, "life"))["error"]
        assert await server.ask("clusters/life/error", "DELETE") == (204, None)
        await page.until(lambda: page.clusters["life"]["error"] is None)

        assert await server.ask("clusters/life/restart", "POST") == (202, {})
        await page.until(lambda: page.clusters["life"]["busy"] == "restarting")
        assert (await done(page, "life"))["error"] is None
        # the state may arrive after the result of the action
        await page.until(lambda: page.clusters["life"]["up"] == 2)
        assert registry.read("life").world.starts == 2

        assert await server.ask("clusters/life/restart", "POST") == (202, {})
        assert await server.ask("clusters/life", "DELETE") == (202, {}), "it can be stopped whatever goes on"
        await page.until(lambda: "life" not in page.clusters)
        (ended,) = (its for its in page.ended if its["name"] == "life")
        assert (ended["state"], ended["reason"]) == ("stopped", "the user has stopped it")
        assert (await server.ask("clusters/life/logs/head"))[0] == 200, "logs outlive the cluster"
        assert await server.ask(f"starts/{key}", "DELETE") == (204, None)
        await page.until(lambda: page.start(key) is None)


@pytest.mark.usefixtures("failing_worlds")
async def test_a_start_that_fails_tells_why_until_it_is_dismissed(server):
    async with browser(server) as page:
        refused = await over(page, await begin(server, page, ranks=2, name="refused", mpi="intelmpi"))
        failed = await over(page, await begin(server, page, ranks=2, name="broken"))

        assert refused["state"] == failed["state"] == "failed"
        assert "mpi 'intelmpi'" in refused["message"] or "Intel MPI" in refused["message"]
        assert "Traceback" not in refused["message"]
        assert failed["message"].startswith("cluster 'broken' did not start")
        assert "world-0.log" in failed["log"]
        assert "no-such-option" in failed["log"]
        assert {"refused", "broken"}.isdisjoint(page.clusters)
        for start in (refused, failed):
            assert (await server.ask(f"starts/{start['id']}", "DELETE"))[0] == 204
            assert (await server.ask(f"starts/{start['id']}", "DELETE"))[0] == 404
        await page.until(lambda: {refused["id"], failed["id"]}.isdisjoint(its["id"] for its in page.starts))


@pytest.mark.usefixtures("hanging_worlds")
async def test_a_start_that_is_dismissed_before_it_is_ready_leaves_nothing(server):
    async with browser(server) as page:
        key = await begin(server, page, ranks=2, name="given-up")
        await page.until(lambda: "given-up" in page.clusters)
        head = ClusterFolder.of(registry.read("given-up")).logs
        assert (await server.ask(f"starts/{key}", "DELETE"))[0] == 204
        await page.until(lambda: "given-up" not in page.clusters)

    assert not clusters_folder().joinpath("given-up").exists()
    until(
        "nothing of it runs",
        lambda: not [its for its in psutil.process_iter(["cmdline"]) if "given-up" in (its.info["cmdline"] or [])],
    )
    assert head.is_dir()
