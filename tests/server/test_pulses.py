"""The process that asks heads, as the server keeps it."""

from __future__ import annotations

import asyncio
import dataclasses

import psutil
import pytest
from distributed.core import Server
from support.processes import DEADLINE, gone, line_of, until

from workbench.deploy import certificates, registry
from workbench.lab.server import heartbeats
from workbench.lab.server.heartbeats import Heartbeats


@pytest.fixture
async def new():
    """Return what makes the pulses of a server."""
    made = []

    def make(**options):
        made.append(Heartbeats(**options))
        return made[-1]

    yield make
    for each in made:
        await each.close()


async def process():
    """Return the process that asks, as soon as it is there."""

    def found():
        return next((its for its in psutil.Process().children() if heartbeats.MODULE in line_of(its)), None)

    await asyncio.to_thread(until, "it is started", found)
    return found()


async def test_it_ends_when_nobody_looks_and_begins_again_when_somebody_does(new):
    messages = asyncio.Queue()
    its = new(idle=0.0)
    its.follow({"none"})

    its.show(messages.put_nowait)
    asking = await process()
    assert (await messages.get())["pulses"] == {}
    its.hide(messages.put_nowait)
    await asyncio.to_thread(until, "it has ended", lambda: gone(asking))

    its.show(messages.put_nowait)
    while not messages.empty():
        messages.get_nowait()
    assert (await messages.get())["type"] == "pulse"


async def test_its_start_and_its_end_are_logged(new, monkeypatch, caplog):
    monkeypatch.setattr(heartbeats, "_END", DEADLINE)  # later it is killed
    caplog.set_level("DEBUG", logger="workbench")
    its, messages = new(), asyncio.Queue()
    its.show(messages.put_nowait)
    await messages.get()
    number = (await process()).pid

    await its.close()

    assert [record.getMessage() for record in caplog.records] == [
        f"started: the process that polls heads, process {number}",
        f"ended: the process that polls heads, process {number}, exit code 0",
    ]


async def test_one_that_talks_nonsense_is_started_again(new, monkeypatch, caplog):
    right = heartbeats.MODULE
    monkeypatch.setattr(heartbeats, "_RESTART", 0.0)
    monkeypatch.setattr(heartbeats, "MODULE", "this")  # a poem
    messages = asyncio.Queue()
    its = new()
    its.show(messages.put_nowait)
    await asyncio.to_thread(until, "that is logged", lambda: "started again" in caplog.text)

    monkeypatch.setattr(heartbeats, "MODULE", right)

    assert (await messages.get())["pulses"] == {}


async def test_browsers_get_messages_while_it_does_not_run(new, monkeypatch, caplog):
    monkeypatch.setattr(heartbeats, "_KEEPALIVE", 0.01)
    monkeypatch.setattr(heartbeats, "MODULE", "this")  # it ends immediately
    messages = asyncio.Queue()
    new().show(messages.put_nowait)
    await asyncio.to_thread(until, "that is logged", lambda: "started again" in caplog.text)
    while not messages.empty():
        messages.get_nowait()

    async with asyncio.timeout(DEADLINE):
        assert (await messages.get())["pulses"] == {}


async def test_one_that_breaks_off_is_started_again_and_ends_with_the_server(new, monkeypatch):
    monkeypatch.setattr(heartbeats, "_RESTART", 0.0)
    messages = asyncio.Queue()
    its = new()
    its.show(messages.put_nowait)
    asking = await process()

    asking.kill()
    await asyncio.to_thread(until, "it has ended", lambda: gone(asking))
    assert (await messages.get())["pulses"] == {}

    asking = await process()
    await its.close()
    assert gone(asking)


class Head(Server):
    """Stands for the head of a cluster; knows by which connections it was asked for its pulse."""

    def __init__(self, record, **options):
        self.record, self.asked_by = record, set()
        super().__init__({"workbench_status": self.status_of_cluster, "workbench_pulse": self.pulse}, **options)

    def status_of_cluster(self):
        return dataclasses.asdict(self.record)

    def pulse(self, comm):
        self.asked_by.add(comm)
        return {"cpu": 1.0, "memory": 2, "clients": 0, "idle": None}


@pytest.fixture
async def head(cluster):
    """Return the head of cluster ``asked``."""
    record = cluster("asked")
    certificates.make(record.folder, record.name)
    security = certificates.security(record.folder)
    async with Head(record, connection_args=security.get_connection_args("scheduler")) as its:
        await its.listen("tls://127.0.0.1:0", **security.get_listen_args("scheduler"))
        its.record = record.replace(address=its.address)
        registry.write(its.record)
        yield its


async def test_only_the_heads_are_asked_whose_pulses_somebody_sees(new, head):
    its, messages = new(idle=1000.0), asyncio.Queue()
    its.follow({"asked", "other"})

    its.show(messages.put_nowait, frozenset({"asked", "gone"}))
    async with asyncio.timeout(DEADLINE):
        while "asked" not in (await messages.get())["pulses"]:
            pass
    [asked_by] = head.asked_by

    its.show(messages.put_nowait, frozenset({"other"}))

    await asyncio.to_thread(until, "it is asked no more", asked_by.closed)


async def test_for_all_who_look_a_head_is_asked_by_one_and_for_nobody_by_none(new, head):
    its, one, other = new(idle=1000.0), asyncio.Queue(), asyncio.Queue()
    its.follow({"asked"})
    for viewer in (one, other):
        its.show(viewer.put_nowait)

    async with asyncio.timeout(DEADLINE):
        while "asked" not in (message := await one.get())["pulses"]:
            pass
        while await other.get() is not message:
            pass  # the same question's answer
        [asked_by] = head.asked_by

        its.hide(one.put_nowait)
        while "asked" not in (await other.get())["pulses"]:
            pass
        its.hide(other.put_nowait)
        await asyncio.to_thread(until, "it is asked no more", asked_by.closed)
    assert head.asked_by == {asked_by}
    assert not gone(await process()), "who looks again need not wait for it"
