"""Blocks never leave their rank, whatever the scheduler, a client or a full disk does."""

from __future__ import annotations

from contextvars import Context

import numpy as np
import pytest
from distributed import Client, Lock, get_worker, wait
from support.processes import until

from workbench import blocks, map_blocks, place
from workbench.placement import pinning
from workbench.placement.in_use import is_aligned

TABLE = np.arange(4000.0).reshape(1000, 4)


def who_runs(block):
    return get_worker().name


@pytest.fixture
def holders(client, local_cluster):
    """Return the names of the ranks that hold a block."""
    return lambda future: {worker.name for worker in local_cluster.scheduler.tasks[future.key].who_has}


@pytest.fixture
def everywhere(client, local_cluster, holders):
    """Fetch all blocks to all ranks, by ordinary tasks."""

    def fetch(futures):
        addresses = list(local_cluster.scheduler.workers)
        copies = [
            client.submit(len, future, workers=[address], pure=False) for future in futures for address in addresses
        ]
        wait(copies)
        assert [holders(future) for future in futures] == [{0, 1, 2, 3}] * len(futures)

    return fetch


def test_the_memory_manager_drops_copies_but_never_the_block_itself(client, holders, everywhere):
    futures = blocks(place(TABLE))
    everywhere(futures)

    client.amm.run_once()

    until("copies are dropped", lambda: all(len(holders(future)) == 1 for future in futures))
    assert [holders(future) for future in futures] == [{0}, {1}, {2}, {3}]


def test_the_memory_manager_still_drops_copies_of_what_is_not_pinned(client, holders, everywhere):
    free = client.submit(np.ones, 1000)
    everywhere([free])

    client.amm.run_once()

    until("copies are dropped", lambda: len(holders(free)) == 1)


@pytest.mark.parametrize("named", [False, True], ids=["everything", "named futures"])
def test_rebalance_moves_other_data_and_leaves_blocks(client, holders, named):
    pinned = [blocks(place(TABLE, per="node"))[0] for _ in range(8)]
    wait(pinned)
    (first,) = client.who_has(pinned[:1])[pinned[0].key]
    free = client.scatter([np.ones(4000) * number for number in range(8)], workers=[first], hash=False)

    client.rebalance([*pinned, *free] if named else None)

    assert [holders(future) for future in pinned] == [{0}] * 8
    assert {name for future in free for name in holders(future)} - {0}


def test_replicate_to_fewer_ranks_keeps_the_block_itself(client, holders, everywhere):
    futures = blocks(place(TABLE))
    free = client.submit(np.ones, 1000)
    everywhere([*futures, free])

    client.replicate([*futures, free], n=1)

    assert all(number in holders(future) for number, future in enumerate(futures))
    assert len(holders(free)) == 1


def test_idle_ranks_steal_neither_blocks_nor_calls_on_them(client, holders):
    X = place(TABLE, per="node")
    gate = Lock("gate")
    gate.acquire()

    def slow(block, number):
        with Lock("gate"):
            return get_worker().name

    results = [future for number in range(40) for future in map_blocks(slow, X, number)]
    gate.release()

    assert set(client.gather(results)) == {0}
    assert holders(blocks(X)[0]) == {0}


def test_a_busy_rank_is_waited_for(client, local_cluster):
    X = place(TABLE)
    gate = Lock("busy")
    gate.acquire()

    def hold(block):
        with Lock("busy"):
            return get_worker().name

    held = map_blocks(hold, X)
    behind = map_blocks(who_runs, X)
    gate.release()

    assert client.gather(held) == client.gather(behind) == [0, 1, 2, 3]


def test_a_block_that_went_to_disk_stays_on_its_rank_and_arrives_aligned(client, local_cluster, holders):
    X = place(TABLE)
    futures = blocks(X)
    wait(futures)
    for worker in local_cluster.workers.values():
        while worker.data.fast:
            worker.data.fast.evict()

    assert client.gather(map_blocks(is_aligned, X)) == [True] * 4
    np.testing.assert_array_equal(np.concatenate(client.gather(map_blocks(np.copy, X))), TABLE)
    assert [holders(future) for future in futures] == [{0}, {1}, {2}, {3}]


def test_restrictions_reach_the_scheduler_for_blocks_and_calls_only(client, local_cluster):
    import dask.array as da

    X = place(da.from_array(TABLE, chunks=(90, 2)))
    results = map_blocks(np.sum, X)
    wait(results)

    by_name = {worker.name: worker.address for worker in local_cluster.scheduler.workers.values()}
    tasks = local_cluster.scheduler.tasks
    pinned = {
        future.key: {by_name[number]} for futures in (blocks(X), results) for number, future in enumerate(futures)
    }
    assert {key: tasks[key].worker_restrictions for key in pinned} == pinned
    assert not any(tasks[key].loose_restrictions for key in pinned)
    lineage = {task for future in blocks(X) for task in tasks[future.key].dependencies}
    assert lineage
    assert not any(task.worker_restrictions for task in lineage)


def test_what_a_client_computes_is_found_where_there_is_no_default_one(local_cluster, monkeypatch):
    # without the clients of other tests
    monkeypatch.setattr("distributed.client._global_clients", {})
    with Client(local_cluster, set_as_default=False) as client:
        [pin] = Context().run(pinning.locate, client, [client.submit(len, "abc")])
    assert pin.address in local_cluster.scheduler.workers
