"""Starts as the server keeps them."""

from __future__ import annotations

import asyncio
import sys

from support.processes import until

from workbench.server import starts
from workbench.server.process import Process
from workbench.server.starts import Starts

# It does not care for Ctrl-C.
DEAF = "import signal; signal.signal(2, signal.SIG_IGN); print('deaf', flush=True); signal.pause()"


class Deaf:
    """Stands for where a verb runs."""

    def run(self, verb, words):
        return Process([sys.executable, "-c", DEAF])


async def test_a_start_that_does_not_end_when_it_is_given_up_is_killed(monkeypatch):
    monkeypatch.setattr(starts, "_CLEAR", 0.0)
    its = Starts(lambda: None)
    start = its.begin([], Deaf(), None)
    await asyncio.to_thread(until, "it is deaf", start.process._out.tell)

    its.dismiss(start.id)
    await asyncio.wait({start.following})

    assert start.following.cancelled(), "nobody reads the files of one that was killed"
    await asyncio.to_thread(until, "it is killed", lambda: start.process._process.poll() is not None)
