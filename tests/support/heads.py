"""A head in the process of a test, with one world that has no processes."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from types import SimpleNamespace

from support.patience import DEADLINE
from workbench.comm import certificates
from workbench.deploy import registry
from workbench.deploy.folder import ClusterFolder
from workbench.head.head import Head


class RunningHead:
    """A head, and what a test sees of it from outside.

    Attributes
    ----------
    head : Head
    signals : dict
        The function of each signal that the head handles. No signal is sent, and the process keeps its handlers.
    code : asyncio.Task
        The exit code.
    """

    def __init__(self, record, end):
        registry.create(record)
        folder = ClusterFolder.of(record)
        certificates.make(folder.path, record.name)
        world = SimpleNamespace(
            folder=folder, index=0, ranks=record.ranks, state="ready", ready=True, present={}, starts=1, job=None
        )
        self.head = Head(record, world, "127.0.0.1", end)
        self.signals = {}

    async def status(self):
        """Return the answer to a client that asks for the record."""
        return await self.head.scheduler.handlers["workbench_status"]()

    def messages(self, kind):
        """Return the messages of a kind that notebooks show."""
        return [event["message"] for _, event in self.head.scheduler.get_events("workbench") if event["kind"] == kind]


@contextlib.asynccontextmanager
async def running_head(record, end=None):
    """Run a head until the end of the block. `end` is that of `Head`."""

    def keep_first(_):
        pass

    async def stop():
        pass

    def add_signal_handler(number, function, *arguments):
        its.signals[number] = partial(function, *arguments)

    its, loop = RunningHead(record, end), asyncio.get_running_loop()
    its.head.current.keep_first, its.head.current.stop = keep_first, stop
    loop.add_signal_handler = add_signal_handler
    its.code = asyncio.ensure_future(its.head.run())
    await asyncio.sleep(0)  # the head starts its scheduler
    await its.head.scheduler
    del loop.add_signal_handler
    try:
        yield its
    finally:
        its.head.end("the test is over")
        await asyncio.wait_for(its.code, DEADLINE)
        its.head.scheduler.http_server.stop()  # left to the end of the process
