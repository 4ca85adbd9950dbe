"""A world is started whatever its user has done to its files."""

from __future__ import annotations

import shutil

import pytest
from support.patience import DEADLINE

from workbench.deploy import registry
from workbench.deploy.record import Record
from workbench.files import node_dirs
from workbench.head.world_process import WorldProcess
from workbench.launch.mpi_library import MPI
from workbench.launch.mpiexec import WorldCommand


@pytest.fixture
def record(tmp_path, monkeypatch):
    """Return the record of a cluster, whose folders on this node are removed after the test."""
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    made = Record(name="a", ranks=2)
    registry.create(made)
    yield made
    node_dirs.remove(made.id)


def test_a_world_starts_again_although_the_user_has_removed_the_logs(record, monkeypatch):
    command = WorldCommand(("echo", "a rank"), {}, {})
    monkeypatch.setattr(WorldProcess, "command", lambda *_: ([], command))
    world = WorldProcess(record, MPI("openmpi", (5, 0), "", "mpiexec"), 0, 2)
    shutil.rmtree(registry.logs_folder())

    world.spawn(1.0)
    assert world._process.wait(DEADLINE) == 0
    world._process.stdin.close()
    assert world.log.read_text().splitlines()[0] == "$ echo a rank"
    assert world.log.read_text().splitlines()[-1] == "a rank"
    assert [path.stat().st_mode & 0o777 for path in (record.logs, world.log)] == [0o700, 0o600]
