"""A rank that crashes by a signal in a call, a cell or a task: the error names the signal and the line of the user."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator

import pytest
from distributed import Client
from support.processes import DEADLINE, until

from workbench import MPICluster, run_on_ranks
from workbench.cells import client as cells
from workbench.errors import RankLost

CELL = "import ctypes\ndef crash():\n    ctypes.string_at(0)\nif rank == 1:\n    crash()\ncomm.Barrier()"
IN_C = r"in a call of string_at \(ctypes/__init__.py:\d+\)"


@pytest.fixture(scope="module")
def cluster() -> Iterator[MPICluster]:
    """A cluster whose ranks crash."""
    with MPICluster(2, quiet=True) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: MPICluster) -> Iterator[Client]:
    """A client; the ranks are started again after each test."""
    with Client(cluster) as client:
        starts = cluster.refresh().world.starts
        yield client
        # Without ULFM the world starts again by itself.
        until("the loss is seen", lambda: not _is_as(cluster, starts))
        if cluster.refresh().state == "degraded":
            cluster.restart()
        until("the ranks are back", lambda: _is_as(cluster, starts + 1))


def _is_as(cluster: MPICluster, starts: int) -> bool:
    record = cluster.refresh()
    return record.state == "ready" and record.world.starts == starts


def crash(*_: object) -> None:
    ctypes.string_at(0)


def crash_on_rank_1(comm):
    if comm.rank == 1:
        crash()
    comm.Barrier()


@pytest.mark.mpi_flavor
def test_in_a_call(client):
    with pytest.raises(RankLost, match=rf"signal 11 \(SIGSEGV\) at test_crashes.py:\d+ in crash, {IN_C}"):
        run_on_ranks(crash_on_rank_1, client=client)


@pytest.mark.mpi_flavor
def test_in_a_task(client):
    with pytest.raises(RankLost, match=rf"signal 11 \(SIGSEGV\) at test_crashes.py:\d+ in crash, {IN_C}"):
        client.submit(crash, workers=[1], pure=False).result(DEADLINE)


@pytest.mark.mpi_flavor
def test_in_a_cell(client):
    result = cells.run(CELL, client=client)
    assert 1 in result.lost
    with pytest.raises(RankLost, match=rf"signal 11 \(SIGSEGV\) at line 3 of the cell with crash, {IN_C}"):
        result.check()


def test_another_end_has_not_the_line_of_an_earlier_crash(client):
    with pytest.raises(RankLost) as caught:
        client.submit(os._exit, 3, workers=[1], pure=False).result(DEADLINE)
    assert "SIGSEGV" not in str(caught.value)
