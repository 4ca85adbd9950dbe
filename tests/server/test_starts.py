"""Starts as the server keeps them."""

from __future__ import annotations

import asyncio
import sys

import psutil
from support.processes import gone, until

from workbench.lab.server import actions
from workbench.lab.server.actions import Starts
from workbench.lab.server.process import Process

# It does not care for Ctrl-C.
DEAF = "import signal; signal.signal(2, signal.SIG_IGN); open('up', 'w'); signal.pause()"


class Runs:
    """Stands for where a subcommand runs."""

    def __init__(self, code, directory):
        self._code, self._directory = code, directory

    def run(self, subcommand, words):
        return Process([sys.executable, "-c", self._code], directory=self._directory)


async def test_a_start_that_does_not_end_when_it_is_given_up_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(actions, "_CLEANUP", 0.0)
    its = Starts(lambda: None)
    start = its.begin([], Runs(DEAF, tmp_path), None)
    await asyncio.to_thread(until, "it is deaf", (tmp_path / "up").exists)

    process = psutil.Process(start.process.pid)
    its.dismiss(start.id)
    await asyncio.wait({start.following})

    assert start.following.cancelled(), "nobody reads the files of one that was killed"
    await asyncio.to_thread(until, "it is killed", lambda: gone(process))


async def test_a_start_that_is_given_up_as_the_server_stops_ends_all_the_same(tmp_path):
    its = Starts(lambda: None)
    start = its.begin([], Runs("import time; open('up', 'w'); time.sleep(1000)", tmp_path), None)
    await asyncio.to_thread(until, "it is up", (tmp_path / "up").exists)

    process = psutil.Process(start.process.pid)
    its.dismiss(start.id)
    its.close()

    await asyncio.to_thread(until, "it has ended", lambda: gone(process))
    await start.process.kill()  # which closes its files


async def test_a_start_that_is_over_is_not_named_after_another_process_of_its_number(tmp_path):
    its = Starts(lambda: None)
    over, goes_on = (
        its.begin([], Runs("raise SystemExit('why')", tmp_path), None),
        its.begin([], Runs(DEAF, tmp_path), None),
    )
    await over.following

    its.recognize({over.process.pid: "another", goes_on.process.pid: "its"})

    assert [(told["state"], told["name"]) for told in its.describe()] == [("failed", None), ("starting", "its")]
    await goes_on.process.kill()
    goes_on.following.cancel()


async def test_a_start_by_another_version_that_answers_otherwise_has_failed(tmp_path):
    its = Starts(lambda: None)
    start = its.begin([], Runs("print('{}')", tmp_path), None)

    await start.following

    [told] = its.describe()
    assert (told["state"], told["log"]) == ("failed", "{}")
    assert "this version cannot read" in told["message"]
