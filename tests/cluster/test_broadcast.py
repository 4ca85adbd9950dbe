"""One object on all ranks, by one upload and MPI_Bcast."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from distributed import Client, Event, LocalCluster
from support.left import left_in
from support.on_ranks import hold, holds_range, let_go, under_way
from support.processes import DEADLINE, until
from support.raised import raises

from workbench import MPICluster, broadcast
from workbench.collective import broadcast as broadcast_module
from workbench.collective import protocol
from workbench.errors import CollectiveFailed, CollectiveTimeout, InvalidRequest, RankLost
from workbench.placement.in_use import is_aligned

# Bytes that no rank can send while another does not take them.
LARGE = np.arange(12_000_000.0)
SOME = LARGE[:1_000_000]
VALUES = {
    "nothing": None,
    "a number": 7,
    "a string": "sieben",
    "a list is one object": [1, "two", np.arange(3)],
    "arrays of all sizes": {name: np.full(10**name, 7.5) for name in range(7)},
    "an empty array": np.empty((0, 3)),
    "not contiguous": np.arange(10_000).reshape(100, 100)[:, ::2],
    "Fortran order": np.asfortranarray(np.ones((300, 300))),
}
ARRAY = np.ones(100_000)


def values(client, future):
    """Return what each rank holds."""
    return client.run(lambda key, dask_worker: dask_worker.data[key], future.key)


def works(client):
    """Return whether a broadcast is made, and not refused."""
    try:
        return broadcast(client, 7, timeout=DEADLINE).result() == 7
    except CollectiveFailed:
        return False


def kept(client):
    """Return the keys of broadcasts that each rank still holds."""
    held = client.run(lambda dask_worker: [key for key in dask_worker.data if str(key).startswith("broadcast-")])
    return [key for keys in held.values() for key in keys]


@pytest.mark.mpi_flavor
def test_the_object_is_on_every_rank_aligned_writable_and_goes_with_its_future(client4):
    future = broadcast(client4, SOME)

    assert len(client4.who_has(future)[future.key]) == 4
    assert future.done()
    assert list(client4.run(holds_range, future.key, len(SOME)).values()) == [True] * 4
    tasks = client4.map(lambda _, x: (is_aligned(x), x.flags.writeable, len(x)), range(8), x=future, pure=False)
    assert client4.gather(tasks) == [(True, True, len(SOME))] * 8

    del tasks, future
    until("the ranks let go of it", lambda: not kept(client4))


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES.keys())
def test_whatever_dask_can_send_arrives_as_it_was(client4, value):
    future = broadcast(client4, value)
    for arrived in values(client4, future).values():
        assert type(arrived) is type(value)
        np.testing.assert_equal(arrived, value)


def test_tables_and_sparse_matrices_arrive_as_they_were(client4):
    # not at the top: ranks import this file, too
    import pandas as pd
    import scipy.sparse

    table = pd.DataFrame({"a": np.arange(100_000), "b": list("xyzw") * 25_000})
    sparse = scipy.sparse.random(1000, 1000, 0.1, format="csr", random_state=0)
    for frame, matrix in values(client4, broadcast(client4, (table, sparse))).values():
        pd.testing.assert_frame_equal(frame, table)
        assert (matrix != sparse).nnz == 0


def test_the_head_drops_none_of_them(client4):
    future = broadcast(client4, ARRAY)
    client4.amm.run_once()
    client4.replicate([future], n=1)
    client4.rebalance([future])
    assert len(client4.who_has(future)[future.key]) == 4


@pytest.mark.parametrize("others", [[], [np.zeros(10**6)]], ids=["small", "large"])
def test_what_cannot_be_sent_says_so_in_one_sentence_and_leaves_nothing(client4, caplog, others):
    with pytest.raises(InvalidRequest, match=r"^the list cannot be sent to the ranks: TypeError: cannot pickle '_thr"):
        broadcast(client4, [*others, threading.Lock()])
    assert not caplog.records
    until("nothing is kept", lambda: not kept(client4))
    assert broadcast(client4, 7).result() == 7


def test_what_has_no_room_on_a_rank_is_on_none(client4):
    def limit(rank, nbytes, dask_worker):
        if dask_worker.name == rank:
            before, dask_worker.memory_manager.memory_limit = dask_worker.memory_manager.memory_limit, nbytes
            return before
        return None

    before = max(filter(None, client4.run(limit, 3, 1000).values()))
    try:
        with raises(CollectiveFailed, ranks=(3,)):
            broadcast(client4, ARRAY)
    finally:
        client4.run(limit, 3, before)
    until("nothing is kept", lambda: not kept(client4))
    assert broadcast(client4, 7).result() == 7


def test_broadcasts_of_several_clients_do_not_cross(cluster4):
    def many(number):
        with Client(cluster4) as client:
            futures = [broadcast(client, np.full(300_000, 10 * number + turn)) for turn in range(4)]
            return [{int(x.mean()) for x in values(client, future).values()} for future in futures]

    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(many, range(3))) == [[{10 * n + turn} for turn in range(4)] for n in range(3)]


def test_busy_ranks_hold_none_up(client4):
    end = Event("end of busy tasks", client=client4)
    busy = client4.map(lambda _: Event("end of busy tasks").wait(60), range(4), pure=False)
    assert broadcast(client4, 7, timeout=DEADLINE).result() == 7
    end.set()
    client4.gather(busy)


def test_a_cluster_broadcasts_too(cluster4, client4):
    assert cluster4.broadcast("everyone").result() == "everyone"


async def test_it_can_be_awaited(cluster4):
    async with Client(cluster4.scheduler_address, security=cluster4.security, asynchronous=True) as client:
        future = await broadcast(client, [1, 2])
        assert await future == [1, 2]


async def test_a_cancelled_broadcast_leaves_nothing_if_its_request_arrives_after_its_release(cluster4):
    name = protocol.BROADCAST_BEGIN

    def postpone(dask_scheduler):
        begin, arrived, go_on = dask_scheduler.handlers[name], asyncio.Event(), asyncio.Event()

        async def late(**request):
            dask_scheduler.handlers[name] = begin
            arrived.set()
            await go_on.wait()
            return await begin(**request)

        dask_scheduler.handlers[name], dask_scheduler.postponed = late, (arrived, go_on)

    async def arrival(dask_scheduler):
        await dask_scheduler.postponed[0].wait()

    async with Client(cluster4.scheduler_address, security=cluster4.security, asynchronous=True) as client:
        await client.run_on_scheduler(postpone)
        sending = asyncio.ensure_future(broadcast(client, 7))
        await client.run_on_scheduler(arrival)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        for _ in range(2):  # tasks take the same way as the release, the second one behind it
            await client.submit(abs, -7, pure=False)
        await client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.postponed[1].set())
        await asyncio.to_thread(until, "no key is left", lambda: "tasks" not in left_in(cluster4))


def test_a_client_that_reaches_no_rank_uploads_through_the_head(cluster4, monkeypatch):
    monkeypatch.setattr(broadcast_module, "_REACH", 1e-9)
    with Client(cluster4) as client:
        future = broadcast(client, ARRAY)
        assert len(client.who_has(future)[future.key]) == 4
        assert {address for address, comms in client.rpc.available.items() if comms} == {client.scheduler.address}


def test_another_cluster_is_refused():
    with (
        LocalCluster(n_workers=1, processes=False, dashboard_address=":0") as cluster,
        Client(cluster) as client,
        pytest.raises(InvalidRequest),
    ):
        broadcast(client, 7)


def test_a_client_that_dies_in_the_middle_leaves_nothing(cluster4, client4):
    client4.run(hold, 3)
    program = (
        "import sys, numpy; from distributed import Client; from workbench import MPICluster, broadcast\n"
        "cluster = MPICluster.attach('shared'); broadcast(Client(cluster), numpy.ones(12_000_000))"
    )
    process = subprocess.Popen([sys.executable, "-c", program])
    try:
        until("all ranks are in the broadcast", lambda: all(client4.run(under_way).values()))
    finally:
        process.kill()
        process.wait(DEADLINE)
    client4.run(let_go, 3)

    assert broadcast(client4, 7, timeout=DEADLINE).result() == 7
    until("nothing is kept", lambda: not kept(client4))


def test_a_rank_that_hangs_or_dies_in_the_middle_ends_the_call_on_all():
    with MPICluster(3, quiet=True) as cluster, Client(cluster) as client:
        client.run(hold, 2)
        with pytest.raises(CollectiveTimeout):
            broadcast(client, SOME, timeout=5)  # in which the others come
        with pytest.raises(CollectiveFailed):
            broadcast(client, 7)
        client.run(let_go, 2)
        until("rank 2 to come back", lambda: works(client))

        client.run(hold, 2)
        with ThreadPoolExecutor(1) as thread:
            lost = thread.submit(broadcast, client, LARGE, timeout=DEADLINE)
            until("all ranks are in the broadcast", lambda: all(client.run(under_way).values()))
            os.kill(cluster.ranks[2]["pid"], signal.SIGKILL)
            with pytest.raises(RankLost):
                lost.result(DEADLINE)
        with pytest.raises(RankLost):
            broadcast(client, 7)
        until("nothing is kept", lambda: not kept(client))


def test_rank_0_dies_before_it_has_the_object():
    with MPICluster(2, quiet=True) as cluster, Client(cluster) as client, ThreadPoolExecutor(1) as thread:
        broadcast(client, 7)
        root = cluster.ranks[0]
        os.kill(root["pid"], signal.SIGSTOP)
        lost = thread.submit(broadcast, client, LARGE, timeout=DEADLINE)
        until("the upload is on its way", lambda: client.rpc.occupied.get(root["address"]))
        os.kill(root["pid"], signal.SIGKILL)
        with pytest.raises(RankLost):
            lost.result(DEADLINE)

        cluster.restart()
        os.kill(cluster.ranks[0]["pid"], signal.SIGKILL)
        # the head may know of the loss or not
        with pytest.raises(RankLost):
            broadcast(client, LARGE, timeout=DEADLINE)


def test_it_reaches_all_ranks_also_of_a_world_that_replaces_the_first():
    with MPICluster(2, quiet=True) as cluster, Client(cluster) as client:
        kept = broadcast(client, SOME)
        for ranks in (3, 1):
            cluster.scale(ranks)
            future = broadcast(client, SOME)
            assert len(client.who_has(kept)[kept.key]) == len(client.who_has(future)[future.key]) == ranks
            assert np.array_equal(kept.result(), SOME)
