"""Calls on some ranks: those that share no rank run in parallel, and do not disturb each other."""

from __future__ import annotations

import os
import signal
from concurrent.futures import CancelledError

import numpy as np
import pytest
from distributed import Client
from support.processes import DEADLINE, until
from support.raised import raises
from support.spmd import be_patient, doing, fail, hang, in_c, meet, note, noted, place_of, total

from workbench import MPICluster, broadcast, place, run_on_ranks, spmd
from workbench.errors import CollectiveFailed, InvalidRequest, RankLost
from workbench.launch import mpi_library


def at_work(client, *ranks):
    """Return whether exactly these ranks are in calls."""
    return sorted(rank for rank, what in client.run(doing).values() if what != "") == sorted(ranks)


@pytest.mark.mpi_flavor
@pytest.mark.parametrize(
    "groups", [(range(2), range(2, 4)), ([3, 0], [2, 1]), ([1], [3, 2, 0])], ids=["halves", "crossed", "1 and 3"]
)
def test_calls_that_share_no_rank_run_at_once_and_their_messages_do_not_mix(client4, tmp_path, groups):
    for times in range(3):  # with new communicators, then with the same
        first, second = (str(tmp_path / f"{name} {times}") for name in ("first", "second"))
        orders = ((first, second, groups[0]), (second, first, groups[1]))
        calls = [spmd(client=client4, ranks=ranks)(meet).submit(mine, other) for mine, other, ranks in orders]

        for (mine, _, ranks), call in zip(orders, calls, strict=True):
            everyone = [(mine, rank) for rank in range(len(ranks))]
            assert call.result(DEADLINE) == [(rank, 2 * everyone, len(ranks)) for rank in ranks]
    assert run_on_ranks(total, client=client4) == [6] * 4


def test_the_order_of_ranks_is_that_of_the_communicator(client4):
    assert run_on_ranks(place_of, client=client4, ranks=[3, 1]) == [(0, 2, 3), (1, 2, 1)]
    assert run_on_ranks(place_of, client=client4, ranks=np.arange(2), result="root") == (0, 2, 0)


def waiting_or_running(dask_scheduler):
    return len(dask_scheduler.handlers["workbench_status"].__self__.spmd.operations)


def test_a_call_on_all_ranks_comes_in_its_order_between_calls_on_some(client4, tmp_path):
    client4.run(noted)
    go = tmp_path / "go"
    held = spmd(client=client4, ranks=[0, 1])(hang).submit("Allreduce", 1, str(go))
    until("the first to run", lambda: at_work(client4, 0, 1))
    assert run_on_ranks(note, 0, 1, client=client4, ranks=[2], timeout=DEADLINE) == [1]
    with Client(client4.scheduler.address, security=client4.security) as other:
        everywhere = spmd(client=other)(note).submit(0, 2)
        until("the next to wait", lambda: client4.run_on_scheduler(waiting_or_running) == 2)
        last = spmd(client=client4, ranks=[2, 3])(note).submit(0, 3)
        until("the last to wait", lambda: client4.run_on_scheduler(waiting_or_running) == 3)
        assert at_work(client4, 0, 1)
        go.touch()
        for call in (held, everywhere, last):
            call.result(DEADLINE)

    logs = dict(client4.run(noted).values())
    assert [[number for _, number in logs[rank]] for rank in range(4)] == [[2], [2], [1, 2, 3], [2, 3]]


def test_calls_of_one_client_keep_their_order_where_they_share_ranks(client4, tmp_path):
    client4.run(noted)
    go = tmp_path / "go"
    held = spmd(client=client4, ranks=[0])(hang).submit("Barrier", 0, str(go))
    calls = [
        spmd(client=client4, ranks=ranks)(note).submit(0, number)
        for number, ranks in enumerate(([0, 1], [1, 2], [3], None, [2]))
    ]
    assert calls[2].result(DEADLINE) == [2]
    assert not any(call.done() for call in (held, calls[0], calls[1], *calls[3:]))
    go.touch()
    for call in (held, *calls):
        call.result(DEADLINE)

    logs = dict(client4.run(noted).values())
    assert [[number for _, number in logs[rank]] for rank in range(4)] == [[0, 3], [0, 1, 3], [1, 3, 4], [2, 3]]


@pytest.mark.mpi_flavor
@pytest.mark.parametrize("end", ["cancelled", "failing", "late"])
@pytest.mark.parametrize("way", ["Allreduce", "allreduce", "recv", "Split", "Dup"])
def test_the_end_of_one_leaves_the_other(client4, tmp_path, end, way):
    go = tmp_path / "go"
    other = spmd(client=client4, ranks=[0, 3])(hang).submit(way, 1, str(go))
    until("the other to run", lambda: at_work(client4, 0, 3))
    if end == "cancelled":
        one = spmd(client=client4, ranks=[2, 1])(hang).submit(way, 1, "/never")
        until("both to run", lambda: at_work(client4, 0, 1, 2, 3))
        assert one.cancel()
        with pytest.raises(CancelledError):
            one.result(DEADLINE)
    elif end == "failing":
        with raises(ValueError) as caught:
            run_on_ranks(fail, way, 1, client=client4, ranks=[2, 1])
        assert caught.value.args[0] == "rank 1 does not come"
    else:
        with pytest.raises(CollectiveFailed):
            run_on_ranks(hang, way, 1, "/never", client=client4, ranks=[2, 1], timeout="1 s")
    until("the one to end", lambda: at_work(client4, 0, 3))
    assert run_on_ranks(total, client=client4, ranks=[2, 1]) == [1, 1]
    assert not other.done()

    if way == "recv":
        other.cancel()  # no rank sends it a message
    else:
        go.touch()
        other.result(DEADLINE)
    assert run_on_ranks(total, client=client4, timeout=DEADLINE) == [6] * 4


def test_a_rank_that_cannot_be_ended_holds_up_calls_on_it_alone(client4, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with raises(ValueError, args=("while another is in C",)):
        run_on_ranks(in_c, 0, tmp_path, client=client4, ranks=[1, 2])

    for ranks in (None, [1, 0]):
        with pytest.raises(CollectiveFailed):
            run_on_ranks(total, client=client4, ranks=ranks)
    assert run_on_ranks(total, client=client4, ranks=[3, 2, 0], timeout=DEADLINE) == [3] * 3

    pipe.write_text("wake up")
    until("the rank to come back", lambda: at_work(client4))
    until("calls on it", lambda: not client4.run_on_scheduler(broken))
    assert run_on_ranks(total, client=client4) == [6] * 4


def broken(dask_scheduler):
    return dask_scheduler.handlers["workbench_status"].__self__.current.world.broken


def test_blocks_stay_on_the_ranks_that_made_them(client4):
    def block(comm):
        return np.full((2, 1), comm.rank)

    X = run_on_ranks(block, client=client4, ranks=[2, 3], result="blocks")

    assert X.compute().ravel().tolist() == [0, 0, 1, 1]
    assert run_on_ranks(total, X, client=client4) == [2, 2]
    assert run_on_ranks(total, X, client=client4, ranks=[3, 2]) == [2, 2]
    with raises(InvalidRequest, option="ranks", given="[0, 1]", allowed=()):
        run_on_ranks(total, X, client=client4, ranks=range(2))


def test_each_rank_gets_large_arguments_and_what_was_broadcast(client4):
    large = np.ones(1 << 18)
    future = broadcast(client4, np.ones(3))
    assert run_on_ranks(total, large, client=client4, ranks=[1, 3]) == [2.0 * (1 << 18)] * 2
    assert run_on_ranks(total, future, client=client4, ranks=[2]) == [3]


@pytest.mark.parametrize("ranks", [2, [], [0, 0], [-1], ["0"], [0.0]], ids=str)
def test_what_is_no_list_of_ranks_is_refused(client4, ranks):
    with raises(InvalidRequest, option="ranks", given=ranks if isinstance(ranks, int) else repr(ranks)):
        run_on_ranks(total, client=client4, ranks=ranks)


def test_ranks_that_do_not_exist_or_hold_no_blocks_are_refused(client4):
    with raises(InvalidRequest, option="ranks", given="[3, 4]", allowed="ranks 0-3: the cluster has no rank 4"):
        run_on_ranks(total, client=client4, ranks=range(3, 5))
    X = place(np.arange(8.0)[:, None], client=client4)
    with pytest.raises(InvalidRequest):
        run_on_ranks(total, X, client=client4, ranks=[0])


@pytest.mark.mpi_flavor
def test_a_rank_that_dies_in_one_call_leaves_the_other_where_the_mpi_can(tmp_path):
    go = tmp_path / "go"

    def enter(comm, name, *args):
        (tmp_path / f"{name} {comm.rank}").touch()
        hang(comm, *args)

    with MPICluster(4, quiet=True) as cluster, Client(cluster) as client:
        client.run_on_scheduler(be_patient)
        one = spmd(client=client, ranks=[0, 2])(enter).submit("one", "Allreduce", 0, "/never")
        other = spmd(client=client, ranks=[1, 3])(enter).submit("other", "Allreduce", 1, str(go))
        # Not earlier: ranks make communicators together, also with a rank of the other call.
        until("all to have their communicators", lambda: len([*tmp_path.iterdir()]) == 4)
        os.kill(cluster.ranks[2]["pid"], signal.SIGKILL)
        with pytest.raises(RankLost):
            one.result(DEADLINE)
        go.touch()
        if mpi_library.find().flavor == "openmpi":
            other.result(DEADLINE)
            assert run_on_ranks(total, client=client, ranks=[3, 1, 0], timeout=DEADLINE) == [3] * 3
            with pytest.raises(RankLost):
                run_on_ranks(total, client=client, ranks=[0, 2])
        else:
            with pytest.raises(RankLost):
                other.result(DEADLINE)
