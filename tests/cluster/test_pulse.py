"""The pulse of a cluster: the short status from its head, and the process that requests the status of all heads."""

from __future__ import annotations

import asyncio
import socket

import pytest
from distributed import Client
from support.processes import DEADLINE, until

from workbench import MPICluster
from workbench.comm import certificates
from workbench.deploy import registry
from workbench.deploy.folder import ClusterFolder
from workbench.deploy.record import Record
from workbench.host.processes import ProcessId
from workbench.lab import observer
from workbench.lab.observer import HeadPolls


@pytest.fixture(scope="module")
def unused():
    """Return a separate cluster: clients of other tests count."""
    with MPICluster(2, quiet=True) as cluster:
        yield cluster


def pulse(cluster):
    return cluster.sync(cluster.scheduler_comm.workbench_pulse)


def test_the_head_tells_what_its_ranks_use_and_who_uses_them(unused):
    until("all ranks have told", lambda: pulse(unused)["memory"] > 2 * 10e6)
    with Client(unused):
        used = pulse(unused)
    until("the client has left", lambda: pulse(unused)["clients"] == 0)
    idle = pulse(unused)["idle"]

    assert (used["clients"], used["idle"]) == (1, None)
    assert 0 <= used["cpu"] < 10_000
    assert idle >= 0
    until("idleness grows", lambda: pulse(unused)["idle"] > idle)


@pytest.fixture
def hung():
    """Return the record of a cluster whose head takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"tls://127.0.0.1:{listening.getsockname()[1]}"
        record = Record(name="hung", ranks=1, state="ready", address=address, process=ProcessId.here())
        registry.create(record)
        certificates.make(ClusterFolder.of(record).path, record.name)
        yield record
        ClusterFolder.of(record).remove()


async def test_heads_are_asked_each_by_itself_until_nobody_wants_to_know(unused, hung, monkeypatch):
    monkeypatch.setattr(observer, "_FORGET", 1.0)
    name, polls, loop = unused.record.name, HeadPolls(), asyncio.get_running_loop()

    def polled():
        names = (task.get_name() for task in asyncio.all_tasks(loop) if not task.cancelling())
        return {each.removeprefix("poll of ") for each in names if each.startswith("poll of ")}

    async with asyncio.timeout(DEADLINE):
        while not (heard := await polls.heartbeats(["hung", name, "none"])):  # noqa: ASYNC110  (as a server asks)
            await asyncio.sleep(0.1)

    assert heard.keys() == {name}
    assert heard[name].keys() == {"cpu", "memory", "clients", "idle"}
    assert heard[name]["clients"] == 0, "who asks for the pulse does not count"
    assert polled() == {"hung", name, "none"}
    await polls.heartbeats(["none"])
    assert polled() == {"none"}
    await asyncio.to_thread(until, "no head is polled", lambda: not polled())
