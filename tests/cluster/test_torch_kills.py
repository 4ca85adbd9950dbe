"""Ranks that are killed while they train. One cluster, because each start of ranks with PyTorch takes seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import dask
import dask.array as da
import pytest
import torch
from distributed import Client
from support import divided, pipelined, streamed, stripped, torched
from support.processes import DEADLINE, until
from support.spmd import be_patient

from workbench import MPICluster, run_on_ranks
from workbench.errors import RankLost
from workbench.launch import mpi_library
from workbench.launch.mpi_library import has_ulfm
from workbench.torch import load_sharded, stream

pytestmark = pytest.mark.mpi_flavor


@pytest.fixture(scope="module")
def mortal() -> Iterator[MPICluster]:
    with (
        dask.config.set({"workbench.world.restarts": 10}),
        MPICluster(2, preload="workbench.torch", quiet=True) as cluster,
    ):
        yield cluster


@pytest.fixture
def client(mortal: MPICluster) -> Iterator[Client]:
    starts = mortal.record.world.starts
    with Client(mortal) as client:
        client.run_on_scheduler(be_patient)
        yield client
    if has_ulfm(mpi_library.find()):
        mortal.restart()
    else:
        until("the world is there again", lambda: is_ready(mortal, starts + 1))


def is_ready(cluster: MPICluster, starts: int) -> bool:
    record = cluster.refresh()
    return record.state == "ready" and record.world.starts == starts


def dies(client: Client, function: Callable[..., Any], *args: Any) -> None:
    """Call a function in which a rank is killed: the others learn of the loss, and so does the caller."""
    with pytest.raises(RankLost):
        run_on_ranks(function, *args, client=client, timeout=4 * DEADLINE)


@pytest.mark.parametrize("training", [torched, pipelined, stripped], ids=["backward", "a stage", "strips"])
def test_a_rank_that_is_killed_ends_the_training_and_the_others_are_told(client, training, tmp_path):
    dies(client, training.train_until, "dies", 1, str(tmp_path / "step"))


def test_a_rank_that_is_killed_between_batches_of_a_stream_ends_the_call(client):
    dies(client, streamed.killed, stream(da.arange(640, chunks=8)), 8)


def test_a_rank_that_is_killed_while_it_writes_leaves_the_former_checkpoint(client, tmp_path):
    dies(client, divided.killed, tmp_path / "run")
    model = torched.net(5)
    assert load_sharded(tmp_path / "run", model) == {"epoch": 1}
    assert all(map(torch.equal, model.parameters(), torched.net(1).parameters()))
