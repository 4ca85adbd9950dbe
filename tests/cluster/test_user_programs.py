"""Calls and cells do what programs do elsewhere: they use Dask, and send objects of their own classes."""

from __future__ import annotations

import enum
import multiprocessing
import os

import numpy as np
import pytest
from dask.base import annotate
from distributed import get_client, get_worker
from distributed.diagnostics.plugin import Environ, UploadDirectory
from support.processes import DEADLINE

from workbench import blocks, map_blocks, place, run_on_ranks
from workbench.cells import client as cells_client
from workbench.errors import InvalidRequest


class Point:
    def __init__(self, x):
        self.x = x

    def __add__(self, other):
        return Point(self.x + other.x)


class Color(enum.Enum):
    RED = 1


def double(x):
    return 2 * x


# As in a notebook, whose classes and functions ranks cannot import.
Point.__module__ = Color.__module__ = double.__module__ = "__main__"


def test_objects_of_classes_of_the_notebook_are_sent_by_mpi_and_multiprocessing(client4):
    def send(comm):
        neighbor = comm.sendrecv(Point(comm.rank), dest=(comm.rank + 1) % 4)
        with multiprocessing.get_context("fork").Pool(1) as pool:
            doubled = pool.map(double, [4])
        return neighbor.x, comm.allreduce(Point(1)).x, comm.bcast(Color.RED) is Color.RED, doubled

    assert run_on_ranks(send, client=client4) == [((rank - 1) % 4, 4, True, [8]) for rank in range(4)]
    result = cells_client.run("comm.bcast(point).x", {"point": Point(2)}, client=client4, values=True)
    assert result.values() == [2] * 4


def test_functions_of_dask_work_in_calls_and_cells_as_in_tasks(client4):
    def use(comm):
        return get_worker().name, get_client().submit(sum, [comm.rank, 1], pure=False).result(DEADLINE)

    assert run_on_ranks(use, client=client4) == [(rank, rank + 1) for rank in range(4)]
    code = "from distributed import get_client, get_worker\nget_worker().name, get_client().status"
    assert cells_client.run(code, client=client4, values=True).values() == [(rank, "running") for rank in range(4)]


def test_blocks_are_pinned_whatever_annotations_say(client4, options):
    def is_loose(keys, dask_scheduler):
        return {dask_scheduler.tasks[key].loose_restrictions for key in keys}

    with annotate(**options):
        X = place(np.arange(8.0), client=client4)
        futures = map_blocks(lambda block: float(block.sum()), X)
        assert [future.result(DEADLINE) for future in futures] == [1, 5, 9, 13]
    assert client4.run_on_scheduler(is_loose, [future.key for future in blocks(X)]) == {False}


def test_plugins_and_functions_for_nannies_are_refused(client4, tmp_path):
    (tmp_path / "package").mkdir()
    for refused in (
        lambda: client4.register_plugin(Environ({"SETTING": "1"})),
        lambda: client4.register_plugin(UploadDirectory(str(tmp_path / "package"))),
        lambda: client4.run(os.getpid, nanny=True),
    ):
        with pytest.raises(InvalidRequest):
            refused()
