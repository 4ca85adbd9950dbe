"""A world is started whatever its user has done to its files."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from types import SimpleNamespace

import pytest
from support.patience import DEADLINE

from workbench.deploy import registry
from workbench.deploy.folder import ClusterFolder, logs_folder
from workbench.deploy.record import Record
from workbench.head.world_process import WorldProcess
from workbench.host import node_dirs
from workbench.launch.mpi_library import MPI, WorldCommand


@pytest.fixture
def record(tmp_path, monkeypatch):
    """Return the record of a cluster, whose folders on this node are removed after the test."""
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    made = Record(name="a", ranks=2)
    registry.create(made)
    yield made
    node_dirs.remove(made.id)


def spawnable(record, ranks, monkeypatch, popen):
    """Return a world that starts ``echo`` by `popen`."""
    monkeypatch.setattr(WorldProcess, "command", lambda *_: ([], WorldCommand(("echo", "a rank"), {}, {})))
    monkeypatch.setattr(subprocess, "Popen", popen)
    return WorldProcess(record, MPI("openmpi", (5, 0), "", "mpiexec"), 0, ranks)


def test_a_world_starts_again_although_the_user_has_removed_the_logs(record, monkeypatch):
    started, popen = [], subprocess.Popen

    def start(*arguments, **options):
        started.append(popen(*arguments, **options))
        return started[0]

    world = spawnable(record, 2, monkeypatch, start)
    shutil.rmtree(logs_folder())

    world.spawn(1.0)
    with started[0] as process:
        assert process.wait(DEADLINE) == 0
    assert world.log.read_text().splitlines()[0] == "$ echo a rank"
    assert world.log.read_text().splitlines()[-1] == "a rank"
    assert [path.stat().st_mode & 0o777 for path in (ClusterFolder.of(record).logs, world.log)] == [0o700, 0o600]


@pytest.mark.parametrize(("ranks", "seconds"), [(2, 5.01), (400, 7.0), (20_000, 105.0)])
async def test_ranks_get_more_time_to_end_in_order_the_more_they_are(ranks, seconds, record, monkeypatch):
    steps, timeout = [], asyncio.timeout

    def pass_at_once(given):
        steps.append(given)
        return timeout(0)

    async def request_end():
        steps.append("request")

    monkeypatch.setattr(asyncio, "timeout", pass_at_once)
    monkeypatch.setattr(os, "killpg", lambda _, number: steps.append(number))
    monkeypatch.setattr(WorldProcess, "_exited", lambda *_: asyncio.get_running_loop().create_future())
    world = spawnable(record, ranks, monkeypatch, lambda *_, **__: SimpleNamespace(pid=-1, poll=lambda: None))
    world.spawn(1.0)
    world.ready = True
    await world.stop(request_end)

    assert steps == [seconds, "request", 2.0, signal.SIGTERM, 2.0, signal.SIGKILL]


async def test_ranks_that_are_not_ready_are_not_asked_to_end(record, monkeypatch):
    sent = []
    exited = asyncio.get_running_loop().create_future()

    def kill(_, number):
        sent.append(number)
        exited.set_result("mpiexec ended")

    async def request_end():
        pytest.fail("no rank receives the request")

    monkeypatch.setattr(os, "killpg", kill)
    monkeypatch.setattr(WorldProcess, "_exited", lambda *_: exited)
    world = spawnable(record, 2, monkeypatch, lambda *_, **__: SimpleNamespace(pid=-1, poll=lambda: None))
    world.spawn(1.0)
    async with asyncio.timeout(DEADLINE):
        await world.stop(request_end)

    assert sent == [signal.SIGTERM]
