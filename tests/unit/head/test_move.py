"""The results of ranks reach the ranks that replace them, or nothing changes."""

from __future__ import annotations

import pytest
from distributed import Client, LocalCluster
from support.processes import DEADLINE, until
from support.raised import raises

from workbench.errors import StartError
from workbench.head.move import moved


@pytest.fixture
def client():
    """Return a client of six workers: those of the former ranks, and then those that replace them."""
    with (
        LocalCluster(
            n_workers=6, threads_per_worker=1, processes=False, protocol="tcp://", dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def at(client, *names):
    return [client.cluster.workers[name].address for name in names]


def addresses(client, names):
    return dict(enumerate(at(client, *names)))


def move(client, former, ranks, size=None):
    scheduler = client.cluster.scheduler
    before, after = addresses(client, former), addresses(client, ranks)
    return client.sync(moved, scheduler, size or len(before), before, after)


def holders(client, future):
    found = client.who_has(future)[future.key]
    return {name for name, worker in client.cluster.workers.items() if worker.address in found}


def pinned(client, names):
    futures = [client.submit(lambda name=name: name, workers=at(client, name), pure=False) for name in names]
    assert client.gather(futures) == names
    return futures


@pytest.mark.parametrize(
    ("former", "ranks", "expected"),
    [([0, 1], [2, 3, 4, 5], [2, 4]), ([0, 1, 2, 3], [4, 5], [4, 4, 5, 5]), ([0, 1, 2], [3, 4, 5], [3, 4, 5])],
)
def test_results_reach_the_ranks_in_order_and_their_tasks_are_pinned_there(client, former, ranks, expected):
    futures, free = pinned(client, former), client.submit(lambda: "free", pure=False)
    (scattered,) = client.scatter(["data"], workers=at(client, former[-1]))
    free.result()
    assert move(client, former, ranks) == ""
    assert [holders(client, future) - set(former) for future in futures] == [{name} for name in expected]
    assert holders(client, free) & set(ranks)
    assert holders(client, scattered) & set(ranks) == {expected[-1]}
    tasks = client.cluster.scheduler.tasks
    restrictions = [tasks[future.key].worker_restrictions for future in futures]
    assert restrictions == [{client.cluster.workers[name].address} for name in expected]


def test_a_value_of_all_ranks_reaches_all_ranks(client):
    value = client.submit(lambda: 7, workers=at(client, 0, 1), pure=False)
    value.result()
    move(client, [0, 1], [2, 3, 4])
    assert holders(client, value) >= {2, 3, 4}


def test_the_places_of_lost_ranks_are_counted(client):
    (future,) = pinned(client, [1])
    move(client, [1], [2, 3], size=1)
    assert holders(client, future) == {1, 2}
    (future,) = pinned(client, [0])
    scheduler, former = client.cluster.scheduler, {1: client.cluster.workers[0].address}  # rank 0 of 2 was lost
    client.sync(moved, scheduler, 2, former, addresses(client, [4, 5]))
    assert holders(client, future) == {0, 5}


def test_results_that_cannot_be_sent_are_an_error_and_the_tasks_stay_pinned(client, monkeypatch):
    async def fail(address, who_has):
        return set(who_has)

    futures = pinned(client, [0, 1])
    scheduler = client.cluster.scheduler
    monkeypatch.setattr(scheduler, "gather_on_worker", fail)
    with raises(StartError):
        move(client, [0, 1], [2, 3])
    tasks = [scheduler.tasks[future.key] for future in futures]
    assert [task.worker_restrictions for task in tasks] == [{each} for each in addresses(client, [0, 1]).values()]
    assert client.gather(futures) == [0, 1]


def test_actors_stay_and_are_counted(client):
    actor = client.submit(dict, actor=True, workers=at(client, 0)).result()
    assert "1 actor of the former ranks is lost" in move(client, [0, 1], [2, 3])
    del actor


def test_tasks_that_wait_for_a_former_rank_run_on_its_replacement(client):
    former = client.cluster.workers[0]

    async def pause(dask_worker):
        from distributed.core import Status

        dask_worker.memory_manager.memory_pause_fraction = False
        dask_worker.status = Status.paused

    client.run(pause, workers=[former.address])
    scheduler = client.cluster.scheduler
    until("the scheduler knows", lambda: scheduler.workers[former.address] not in scheduler.running)
    future = client.submit(lambda: 7, workers=at(client, 0), pure=False)
    until("the task waits", lambda: scheduler.unrunnable)
    move(client, [0, 1], [2, 3])
    assert future.result(DEADLINE) == 7
    assert holders(client, future) == {2}
