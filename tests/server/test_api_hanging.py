"""A file server hangs: the server keeps running, informs all browsers in time, and recovers when the files answer."""

from __future__ import annotations

import asyncio
import os

import psutil
import pytest
from server.listening import browser
from server.running import BASE, TOKEN, end, log_in, start

from workbench.deploy.folder import RECORD, ClusterFolder, clusters_folder

KEY = {"Authorization": f"token {TOKEN}"}


@pytest.fixture(scope="module")
def short():
    """Return a server that does not wait for long."""
    server = start(patience=1.0)
    yield server
    end(server.process)


@pytest.fixture
def hangs(cluster, tmp_path):
    """Return what makes a cluster whose record hangs, as on a file server that does not answer, until it is called."""
    opened = []

    def make(name):
        path = ClusterFolder.of(cluster(name)).path / RECORD
        kept, pipe = tmp_path / name, tmp_path / f"{name}.pipe"
        kept.write_bytes(path.read_bytes())
        kept.chmod(0o600)
        os.mkfifo(pipe, 0o600)
        opened.append(os.open(pipe, os.O_RDWR))
        pipe.replace(path)

        def answer():
            kept.replace(path)
            while opened:
                os.close(opened.pop())

        answers.append(answer)
        return answer

    answers = []
    yield make
    for answer in answers:
        if opened:
            answer()


async def test_every_request_that_needs_the_registry_says_in_time_which_folder_does_not_answer(short, hangs):
    hangs("asleep")

    asked = (
        ("clusters", "GET", None),
        ("clusters/asleep", "DELETE", None),
        ("clusters/asleep/scale", "POST", {"ranks": 3}),
        ("clusters/asleep/restart", "POST", None),
        ("clusters/asleep/logs", "GET", None),
        ("clusters/asleep/logs/head", "GET", None),
        ("check", "POST", {"ranks": 1, "name": "asleep"}),
        ("check", "POST", {"ranks": 1}),
    )
    answers = await asyncio.gather(*(short.ask(*its) for its in asked))
    for its, (code, told) in zip(asked, answers, strict=True):
        assert code == 504, its
        assert told["message"].startswith(f"{clusters_folder()} has not answered for 1 s"), its
    page = await short.get(f"{BASE}workbench/dashboard/asleep/", headers=KEY)
    assert page.code == 504
    assert str(clusters_folder()) in page.body.decode()


async def test_meanwhile_the_server_goes_on_and_has_no_more_threads(short, hangs):
    hangs("asleep")
    await asyncio.gather(short.ask("clusters"), short.get(f"{BASE}api/status", headers=KEY))
    before = psutil.Process(short.process.pid).num_threads()

    asking = [asyncio.create_task(short.ask("clusters")) for _ in range(40)]
    answer = await short.get(f"{BASE}api/status", headers=KEY)

    assert answer.code == 200
    assert {code for code, _ in await asyncio.gather(*asking)} == {504}
    assert psutil.Process(short.process.pid).num_threads() <= before


async def test_browsers_keep_what_they_know_hear_of_it_and_hear_when_it_is_over(short, cluster, hangs):
    server = await log_in(short)
    cluster("known")
    async with browser(server) as page:
        await page.until(lambda: "known" in page.clusters)

        answer = hangs("asleep")
        [trouble] = await page.until(lambda: page.broken)

        assert trouble["name"] == ""
        assert "has not answered" in trouble["error"]
        assert "known" in page.clusters
        async with browser(server) as late:
            assert late.heard[0]["type"] == "state"
            assert late.broken == [trouble]

        answer()
        await page.until(lambda: "asleep" in page.clusters and not page.broken)
