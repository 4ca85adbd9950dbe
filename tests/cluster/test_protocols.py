"""The protocols between the ranks of a cluster, seen from the notebook."""

from __future__ import annotations

import sys

import dask.array as da
import numpy as np
import pytest
from distributed import Client, Scheduler, Worker
from support.processes import until

from workbench import MPICluster, comm

BLOCK = 1_000_000  # bytes: MPI transfers it


def _addresses(client: Client) -> set[str]:
    return {address.split("://")[0] for address in client.scheduler_info(n_workers=-1)["workers"]}


def _by_mpi() -> int:
    return sum(row["received_bytes"] for row in comm.traffic() if row["way"] == "mpi")


def _sum_and_place(block: np.ndarray) -> tuple[float, int, bool]:
    return float(block.sum()), block.ctypes.data % 64, block.flags.writeable


def _exchange(client: Client) -> None:
    """Make every rank work on a block that another one has."""
    workers = list(client.scheduler_info(n_workers=-1)["workers"])
    blocks = [
        client.submit(np.full, BLOCK // 8, float(number), workers=[worker], pure=False)
        for number, worker in enumerate(workers)
    ]
    there = workers[1:] + workers[:1]
    sums = [
        client.submit(_sum_and_place, block, workers=[worker], pure=False)
        for block, worker in zip(blocks, there, strict=True)
    ]
    assert client.gather(sums) == [(BLOCK / 8 * number, 0, True) for number in range(len(workers))]


@pytest.mark.mpi_flavor
def test_blocks_go_between_ranks_by_mpi(client4: Client) -> None:
    assert _addresses(client4) == {"mpi"}
    before = client4.run(_by_mpi)
    _exchange(client4)
    assert {rank: received - before[rank] for rank, received in client4.run(_by_mpi).items()} == dict.fromkeys(
        before, BLOCK
    )


def test_with_protocol_tcp_everything_goes_through_encrypted_sockets() -> None:
    with MPICluster(2, protocol="tcp", quiet=True) as cluster, Client(cluster) as client:
        assert _addresses(client) == {"tls"}
        workers = list(client.scheduler_info(n_workers=-1)["workers"])
        block = client.submit(np.ones, BLOCK // 8, workers=workers[:1])
        assert client.submit(np.sum, block, workers=workers[1:]).result() == BLOCK / 8
        assert set(client.run(_by_mpi).values()) == {0}


def test_an_mpi_without_threads_is_used_from_one_and_leaves_blocks_on_the_sockets_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MPI4PY_RC_THREAD_LEVEL", "funneled")
    with MPICluster(2, quiet=True) as cluster, Client(cluster) as client:
        assert {rank["threads"] for rank in cluster.ranks} == {"funneled"}
        assert _addresses(client) == {"tls"}
        why = "only MPI_THREAD_FUNNELED, so blocks are sent over sockets"
        until("the head says why", lambda: why in cluster.refresh().message)
        assert sorted(client.run(_add_ranks).values()) == [1, 1]


async def _add_ranks() -> int:
    import asyncio

    from workbench import rank

    context = rank.current()
    return await asyncio.wrap_future(context.spmd_thread.submit(context.spmd.allreduce, context.rank))


def test_a_notebook_that_asks_ranks_directly_gets_aligned_writable_blocks_and_loads_no_mpi(client4: Client) -> None:
    whole = da.random.default_rng(0).random((1000, 1000), chunks=(500, 1000)).persist()
    for block in client4.gather(client4.compute(list(whole.to_delayed().ravel())), direct=True):
        assert block.ctypes.data % 64 == 0
        assert block.flags.writeable
    assert "mpi4py.MPI" not in sys.modules


async def _heartbeat(dask_worker: Worker) -> None:
    await dask_worker.heartbeat()


def _transport_metrics(dask_scheduler: Scheduler) -> list[dict[str, int]]:
    return [state.metrics["transport"] for state in dask_scheduler.workers.values()]


def test_what_the_transport_did_is_among_the_metrics_of_each_worker(client4: Client) -> None:
    _exchange(client4)
    client4.run(_heartbeat)
    for metrics in client4.run_on_scheduler(_transport_metrics):
        assert metrics["mpi_received"] >= BLOCK
        assert metrics["pool_idle"] + metrics["pool_leased"] >= BLOCK
