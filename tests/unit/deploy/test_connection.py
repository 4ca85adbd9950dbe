"""How long a start waits for the answer of the head."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import threading
import time
from types import SimpleNamespace
from typing import Any

import dask
import pytest
from support.patience import DEADLINE

from workbench.deploy import connection, ended
from workbench.deploy.connection import HeadConnection
from workbench.deploy.folder import ClusterFolder
from workbench.deploy.job import ClusterJob
from workbench.deploy.record import Record
from workbench.deploy.ssh_tunnel import Tunnel
from workbench.errors import HeadUnreachable
from workbench.host.processes import ProcessId


@pytest.fixture
def listening():
    """A port whose process is too busy to answer."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.fixture(autouse=True)
def _short():
    with dask.config.set({"workbench.connect-timeout": "0.05 s"}):
        yield


def record(port: int, **fields: Any) -> Record:
    its = {"state": "starting", "deadline": time.time() + DEADLINE, "process": ProcessId.here(), **fields}
    return Record(name="a", ranks=2, address=f"tls://127.0.0.1:{port}", **its)


def connect(its: Record, monkeypatch: Any, answers: int = 2) -> HeadConnection:
    """Return a connection to a head of which the second answer comes."""
    asked = []

    async def workbench_status() -> dict[str, Any]:
        asked.append(1)
        if len(asked) < answers:
            await asyncio.Event().wait()
        return dataclasses.asdict(its)

    head = SimpleNamespace(workbench_status=workbench_status, timeout=0.0)
    monkeypatch.setattr(connection, "rpc", lambda *_, **__: head)
    nothing = SimpleNamespace(get_connection_args=lambda _: {})
    monkeypatch.setattr(connection.certificates, "security", lambda _: nothing)
    job = ClusterJob(its)
    monkeypatch.setattr(job, "poll", lambda: its)
    return HeadConnection(job)


async def test_a_head_that_is_busy_with_its_start_has_the_time_of_the_start(listening, monkeypatch):
    its = connect(record(listening), monkeypatch)
    await its.open()
    assert its.rpc.timeout == 0.05


@pytest.mark.parametrize(
    "fields", [{"state": "ready"}, {"deadline": time.time() - 1}], ids=["it has started", "its time is over"]
)
async def test_a_head_that_has_no_time_left_is_given_up(fields, listening, monkeypatch):
    with pytest.raises(HeadUnreachable) as caught:
        await connect(record(listening, **fields), monkeypatch).open()
    assert "ssh-tunnel" not in str(caught.value), "there is a way from a host to itself"


async def test_a_head_that_no_route_leads_to_is_given_up_with_advice(listening, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    there = dataclasses.replace(ProcessId.here(), host="node2")
    with pytest.raises(HeadUnreachable, match=r"within 0 s.*--ssh-tunnel node2"):
        await connect(record(port, process=there), monkeypatch).open()


async def test_an_answer_of_the_head_does_not_wait_for_a_file_server_that_hangs(listening, monkeypatch):
    its = record(listening, state="ready")
    connected = connect(its, monkeypatch, answers=1)
    await connected.open()
    looked, over = threading.Event(), threading.Event()

    def hang(_):
        looked.set()
        return over.wait(2 * DEADLINE)

    async def answer():
        assert await asyncio.to_thread(looked.wait, DEADLINE)
        return dataclasses.asdict(its)

    monkeypatch.setattr(ClusterJob, "runs", hang)
    connected.rpc.workbench_status = answer
    try:
        with dask.config.set({"workbench.connect-timeout": 2 * DEADLINE}):
            async with asyncio.timeout(DEADLINE):
                assert await connected.refresh() == its
    finally:
        over.set()


async def test_a_host_without_ssh_has_no_tunnel_and_learns_why(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HeadUnreachable):
        await Tunnel("gate").open(["tls://10.0.0.1:4000"], DEADLINE)


async def test_a_head_that_has_ended_is_not_waited_for(listening, monkeypatch):
    connected = connect(record(listening, state="ready"), monkeypatch, answers=1)
    await connected.open()
    connected.rpc.workbench_status = asyncio.Event().wait
    monkeypatch.setattr(ClusterJob, "runs", lambda _: False)
    with (
        dask.config.set({"workbench.connect-timeout": 2 * DEADLINE}),
        pytest.raises(HeadUnreachable),
    ):
        async with asyncio.timeout(DEADLINE):
            await connected.refresh()


async def test_a_change_has_the_time_that_the_head_gives_to_results_that_it_moves(listening, monkeypatch):
    its = record(listening, state="ready", ready_within=0.01)
    connected = connect(its, monkeypatch, answers=1)
    await connected.open()
    monkeypatch.setattr(connection, "_PROGRESS_INTERVAL_S", 0.01)
    monkeypatch.setattr(connection, "_ENDING_S", 0.01)
    moved, status, begin = asyncio.Event(), connected.rpc.workbench_status, time.monotonic()

    async def workbench_status():
        if time.monotonic() > begin + 0.2:
            moved.set()
        return await status()

    connected.rpc.workbench_status, connected.rpc.workbench_scale = workbench_status, moved.wait
    with dask.config.set({"workbench.start-timeout": DEADLINE}):
        await connected.change("workbench_scale", "scaling to 2", quiet=True)
    assert moved.is_set()


async def test_a_note_that_was_withdrawn_is_not_the_end_of_a_cluster_that_goes_on(listening, monkeypatch, tmp_path):
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    its = record(listening, state="ready")
    connected = connect(its, monkeypatch)
    ClusterFolder.of(its).note(its, ended.STOPPED, "the user has stopped it")
    assert await connected.end_reason()
    assert "has ended" in str(connected.lost())
    ClusterFolder.of(its).withdraw_note()
    assert await connected.end_reason() is None
    assert "no longer connected" in str(connected.lost())


async def test_a_connection_closes_while_the_interpreter_ends(listening, monkeypatch):
    connected = connect(record(listening, state="ready"), monkeypatch, answers=1)
    await connected.open()
    closed = []

    async def close_rpc():
        closed.append("rpc")

    async def close():
        closed.append("tunnel")

    async def to_thread(*_):
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    connected.rpc.close_rpc, connected._tunnel = close_rpc, SimpleNamespace(close=close)
    monkeypatch.setattr(asyncio, "to_thread", to_thread)
    assert not await connected.gone()
    await connected.close()
    assert closed == ["rpc", "tunnel"]
