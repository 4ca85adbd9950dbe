"""The heartbeats of heads, as browsers get them."""

from __future__ import annotations

import asyncio
import dataclasses

import psutil
import pytest
from distributed.core import Server
from support.processes import DEADLINE, gone, line_of, until

from workbench.comm import certificates
from workbench.deploy.folder import ClusterFolder
from workbench.lab.server import observer, state
from workbench.lab.server.observer import Observer
from workbench.lab.server.state import Heartbeats


@pytest.fixture
async def new():
    """Return a function that makes the pulses of a server, each with a separate observer."""
    made = []

    def make():
        observer = Observer()
        made.extend([Heartbeats(observer), observer])
        return made[-2]

    yield make
    for each in made:
        await each.close()


async def test_browsers_get_messages_while_no_process_runs_and_heartbeats_when_it_does(new, head, monkeypatch, caplog):
    monkeypatch.setattr(state, "_ANSWER", 0.01)
    monkeypatch.setattr(state, "_PAUSE", 0.01)
    right = observer.MODULE
    monkeypatch.setattr(observer, "MODULE", "no_such_module")
    messages = asyncio.Queue()
    its = new()
    its.follow({"asked"})
    its.show(messages.put_nowait)
    async with asyncio.timeout(DEADLINE):
        assert (await messages.get())["pulses"] == {}
    assert "no heartbeats: the process that observes clusters" in caplog.text

    monkeypatch.setattr(state, "_ANSWER", DEADLINE)
    monkeypatch.setattr(observer, "MODULE", right)

    async with asyncio.timeout(2 * DEADLINE):
        while "asked" not in (await messages.get())["pulses"]:
            pass


async def test_an_error_of_the_process_ends_no_messages(new, monkeypatch):
    monkeypatch.setattr(state, "_BEAT", 0.0)
    monkeypatch.setattr(state, "_ANSWER", 1.0)
    messages = asyncio.Queue()
    its = new()
    its.show(messages.put_nowait)
    await messages.get()

    def found():
        children = psutil.Process().children()
        return [each for each in children if not gone(each) and observer.MODULE in line_of(each)]

    [process] = found()
    process.kill()
    await asyncio.to_thread(until, "it has ended", lambda: gone(process))
    await asyncio.to_thread(until, "another one is started", found)


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
    certificates.make(ClusterFolder.of(record).path, record.name)
    security = certificates.security(ClusterFolder.of(record).path)
    async with Head(record, connection_args=security.get_connection_args("scheduler")) as its:
        await its.listen("tls://127.0.0.1:0", **security.get_listen_args("scheduler"))
        its.record = record.replace(address=its.address)
        ClusterFolder.of(its.record).write(its.record)
        yield its


async def test_only_the_heads_are_asked_whose_pulses_somebody_sees(new, head):
    its, messages = new(), asyncio.Queue()
    its.follow({"asked", "other"})

    its.show(messages.put_nowait, frozenset({"asked", "gone"}))
    async with asyncio.timeout(DEADLINE):
        while "asked" not in (await messages.get())["pulses"]:
            pass
    [asked_by] = head.asked_by

    its.show(messages.put_nowait, frozenset({"other"}))

    await asyncio.to_thread(until, "it is asked no more", asked_by.closed)


async def test_for_all_who_look_a_head_is_asked_by_one_and_for_nobody_by_none(new, head):
    its, one, other = new(), asyncio.Queue(), asyncio.Queue()
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
