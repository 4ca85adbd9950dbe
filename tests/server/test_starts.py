"""Starts as the server keeps them."""

from __future__ import annotations

import asyncio
import sys

from support.processes import until

from workbench.lab.server import actions
from workbench.lab.server.actions import Starts
from workbench.lab.server.process import Process

# It does not care for Ctrl-C.
DEAF = "import signal; signal.signal(2, signal.SIG_IGN); print('deaf', flush=True); signal.pause()"


class Runs:
    """Stands for where a subcommand runs."""

    def __init__(self, code):
        self._code = code

    def run(self, subcommand, words):
        return Process([sys.executable, "-c", self._code])


async def test_a_start_that_does_not_end_when_it_is_given_up_is_killed(monkeypatch):
    monkeypatch.setattr(actions, "_CLEANUP", 0.0)
    its = Starts(lambda: None)
    start = its.begin([], Runs(DEAF), None)
    await asyncio.to_thread(until, "it is deaf", start.process._out.tell)

    its.dismiss(start.id)
    await asyncio.wait({start.following})

    assert start.following.cancelled(), "nobody reads the files of one that was killed"
    await asyncio.to_thread(until, "it is killed", lambda: start.process._process.poll() is not None)


async def test_a_start_that_is_given_up_as_the_server_stops_ends_all_the_same():
    its = Starts(lambda: None)
    start = its.begin([], Runs("import time; print('up', flush=True); time.sleep(1000)"), None)
    await asyncio.to_thread(until, "it is up", start.process._out.tell)

    its.dismiss(start.id)
    its.close()

    await asyncio.to_thread(until, "it has ended", lambda: start.process._process.poll() is not None)
    await start.process.kill()  # which closes its files


async def test_a_start_that_is_over_is_not_named_after_another_process_of_its_number():
    its = Starts(lambda: None)
    over, goes_on = its.begin([], Runs("raise SystemExit('why')"), None), its.begin([], Runs(DEAF), None)
    await over.following

    its.recognize({over.process.pid: "another", goes_on.process.pid: "its"})

    assert [(told["state"], told["name"]) for told in its.describe()] == [("failed", None), ("starting", "its")]
    await goes_on.process.kill()
    goes_on.following.cancel()


async def test_a_start_by_another_version_that_answers_otherwise_has_failed():
    its = Starts(lambda: None)
    start = its.begin([], Runs("print('{}')"), None)

    await start.following

    [told] = its.describe()
    assert (told["state"], told["log"]) == ("failed", "{}")
    assert "this version cannot read" in told["message"]
