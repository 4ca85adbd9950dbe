"""What ranks count and sample arrives in the head, and is right."""

from __future__ import annotations

import os
import signal
import time

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client
from support import metered
from support.processes import DEADLINE, kill, until
from support.raised import raises

from workbench import MPICluster, place, report, run_on_ranks
from workbench.cells import client as cells_client
from workbench.commands import actions
from workbench.errors import InvalidRequest
from workbench.metrics.schema import RANK, TICK
from workbench.metrics.update import Update
from workbench.ml import KMeans

FLAVOR = pytest.mark.mpi_flavor


@pytest.fixture
def cluster(cluster4, client4):
    return cluster4


def update(cluster, since: int = 0) -> Update:
    async def ask():
        return Update.unpack(await cluster.scheduler_comm.workbench_metrics(since=since))

    return cluster.sync(ask)


def traffic(cluster, client, kind="mpi"):
    """Return bytes and messages between ranks so far, when the head has received all counts of the ranks."""

    def told():
        table = cluster.metrics("traffic")
        table = table[table["kind"] == kind]
        return [table[what].to_numpy().reshape(4, 4) for what in ("bytes", "messages")]

    def counted():
        sums = np.zeros((2, 4, 4))
        for rank, sent in client.run(_counted, kind).values():
            for peer, counts in sent.items():
                sums[:, rank, peer] = counts
        return sums

    until("all that was counted", lambda: np.array_equal(told(), counted()))
    return told()


def _counted(kind, dask_worker):
    sent = _sent_by_transport() if kind == "dask" else dask_worker.activity.meter.sum().sent
    return dask_worker.name, dict(sent)


@FLAVOR
def test_what_ranks_send_by_mpi_is_shown_to_the_byte(cluster, client4):
    sizes = [10, 200, 3000, 40_000]
    before = traffic(cluster, client4)
    assert run_on_ranks(metered.ring, sizes, client=client4) == [4.0] * 4
    sent, messages = (after - its for after, its in zip(traffic(cluster, client4), before, strict=True))
    expected = 8.0 * (1 - np.eye(4)) + np.roll(np.diag(sizes), 1, axis=1)
    assert np.array_equal(sent, expected)
    assert np.array_equal(messages, (1 - np.eye(4)) + np.roll(np.eye(4), 1, axis=1))


def test_what_cells_send_is_shown_to_the_byte(cluster, client4):
    before, _ = traffic(cluster, client4)
    cells_client.run("import numpy as np\ncomm.Bcast(np.zeros(1000, 'b'), root=2)", client=client4)
    after, _ = traffic(cluster, client4)
    expected = np.zeros((4, 4))
    expected[2, [0, 1, 3]] = 1000
    assert np.array_equal(after - before, expected)


def test_what_dask_moves_is_what_the_transport_has_counted(cluster, client4):
    before, _ = traffic(cluster, client4, "dask")
    x = client4.submit(np.ones, 1_000_000, workers=[1], pure=False)
    assert client4.submit(np.sum, x, workers=[2]).result(DEADLINE) == 1e6
    sent, messages = traffic(cluster, client4, "dask")
    counted = client4.run(_sent_by_transport)
    for rank in cluster.ranks:
        for peer, (nbytes, number) in counted[rank["address"]].items():
            assert sent[rank["rank"], peer] <= nbytes
            assert messages[rank["rank"], peer] <= number
    assert 8_000_000 <= sent[1, 2] - before[1, 2] < 8_100_000


def _sent_by_transport():
    from workbench.metrics.sampler import by_transport

    return by_transport()


def test_calls_and_cells_are_told_with_what_they_cost_when_they_are_over(cluster, client4, monkeypatch):
    monkeypatch.setattr("workbench.session.current.cell_number", lambda: 12)
    run_on_ranks(metered.come_late, 3, client=client4)
    cells_client.run("comm.Barrier()", client=client4)

    def over():
        last = cluster.metrics("calls").tail(2)
        return last[["what", "ranks"]].to_numpy().tolist() == [["come_late", 4], ["a cell", 4]]

    until("both to be told of", over)
    call, cell = cluster.metrics("calls").tail(2).to_dict("records")
    assert [call["cell"], cell["cell"]] == [12, 12]
    assert call["operations"] == 12
    assert call["bytes"] == 4 * 3 * 3 * 8
    # three wait three times, less what they themselves come late
    assert 0.3 < call["mpi"] < call["seconds"]
    assert 0.3 < (call["end"] - call["begin"]).total_seconds() < DEADLINE


@FLAVOR
def test_the_operation_that_ranks_are_in_is_told_while_they_are(cluster, client4, tmp_path):
    from workbench import spmd

    begin = time.time()
    future = spmd(client=client4)(metered.wait_for).submit(tmp_path / "end")
    try:

        def stuck():
            return [its.operation for its in update(cluster).now] == [None, "Barrier", "Barrier", "Barrier"]

        def all_the_time():
            shares = dict(zip(RANK, update(cluster).rank[-1].T, strict=True))
            return shares["compute"][0] > 0.9 and (shares["waiting"][1:] > 0.9).all()

        until("the ranks to wait", stuck)
        until("a full tick of that", all_the_time)
        told = update(cluster)
        assert [its.what for its in told.now] == ["wait_for"] * 4
        assert all(begin <= its.since < time.time() for its in told.now)
    finally:
        (tmp_path / "end").touch()
        future.result(DEADLINE)
    until("they are idle", lambda: [its.what for its in update(cluster).now] == [""] * 4)


@FLAVOR
def test_who_comes_late_lets_the_others_wait(cluster, client4):
    begin = update(cluster).seq
    run_on_ranks(metered.come_late, 20, client=client4)  # the share of waiting is learned in the first half of them
    end = update(cluster).seq
    until("the last ticks of it", lambda: update(cluster).seq >= end + 4)
    told = update(cluster)
    during = told.rank[-(told.seq - begin) :]
    compute, waiting = (np.nansum(during[:, :, RANK.index(what)], axis=0) for what in ("compute", "waiting"))
    assert compute[0] > 2 * waiting[0]
    assert (waiting[1:] > 2 * waiting[0]).all()
    assert (waiting[1:] > compute[1:]).all()

    def waited():
        return cluster.metrics("operations").set_index("operation").loc["Allreduce", "waiting"]

    until("all ranks have reported when they met", lambda: waited() > 1.0)


def test_tasks_are_computing_and_told_by_their_names(cluster, client4, tmp_path):
    future = client4.submit(metered.spin_until, tmp_path / "end", workers=[3], pure=False)
    try:

        def computing():
            ranks = cluster.metrics("ranks")
            its = ranks[ranks["rank"] == 3].iloc[-1]
            return its["compute"] > 0.9 and its["cpu"] > 10 and its["tasks"] == 1

        until("its task", lambda: update(cluster).now[3].what == "task spin_until")
        until("a full tick of it", computing)
    finally:
        (tmp_path / "end").touch()
        future.result(DEADLINE)


def test_a_rank_that_holds_the_interpreter_is_told_by_its_neighbors(cluster, client4, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    # rank 0 reports for its node
    future = client4.submit(metered.hold_the_interpreter, tmp_path / "pipe", workers=[0], pure=False)
    try:
        until("its silence", lambda: update(cluster).now[0].silent > 2 * TICK)

        def told_by_another():
            told = update(cluster)
            its = told.rank[-1, 0]
            silent = told.now[0].silent > 2 * TICK and told.now[1].silent == 0
            return silent and np.isfinite(its).all() and its[RANK.index("memory")] > 1e6

        until("a tick since", told_by_another)
    finally:
        (tmp_path / "pipe").write_text("x")
    future.result(DEADLINE)
    until("it speaks again", lambda: update(cluster).now[0].silent == 0)


@pytest.mark.parametrize("engine", ["mpi", "dask"])
def test_a_fit_tells_of_its_iterations(cluster, client4, engine):
    X = place(da.random.default_rng(1).random((4000, 5), chunks=(1000, 5)), client=client4)
    earlier = _identities(cluster)
    model = KMeans(3, engine=engine, random_state=0, tol=0.1).fit(X)
    until("its records", lambda: len(_told(cluster, "KMeans", earlier)) >= model.n_iter_)
    told = _told(cluster, "KMeans", earlier)
    assert [its["step"] for its in told] == list(range(1, len(told) + 1))
    assert len(told) == model.n_iter_
    assert all(its["score"] > 0 for its in told)


def _identities(cluster):
    return {its["fit"] for its in update(cluster).fits}


def _told(cluster, name, earlier=()):
    """Return the records of fits with a name: records of other tests may arrive late."""
    return [its for its in update(cluster).fits if its["name"] == name and its["fit"] not in earlier]


def test_trainings_of_users_tell_from_everywhere(cluster, client4):
    expected = {
        "notebook's": {1.0: 2.0},
        "mine, rank 0": {0.0: 1.0, 1.0: 1 / 2, 2.0: 1 / 3},
        "task, rank 2": {7.0: 3.0},
    }
    with client4.as_current():
        report(1, name="notebook's", loss=2.0)
    run_on_ranks(metered.train, 3, client=client4)
    client4.submit(report, 7, name="task", loss=np.float32(3), workers=[2], pure=False).result(DEADLINE)

    def told(name):
        return {its["step"]: its["loss"] for its in _told(cluster, name)}

    for name, values in expected.items():
        until(f"the records of {name}", lambda name=name, values=values: told(name) == values)


def test_a_rank_that_dies_is_told_as_lost_and_a_new_world_begins_anew():
    with MPICluster(2, quiet=True) as cluster, Client(cluster) as client:
        run_on_ranks(metered.ring, [5, 6], client=client)
        until("what was sent", lambda: cluster.metrics("traffic")["bytes"].sum() == 27)
        kill(cluster.ranks[1]["pid"])
        until("the loss", lambda: update(cluster).now[1].is_lost)
        cluster.restart()
        until("a new world", lambda: np.isfinite(update(cluster).rank[-1:]).all() and len(update(cluster).rank))
        assert [its.what for its in update(cluster).now] == ["", ""]
        mpi = cluster.metrics("traffic").query("kind == 'mpi'")
        assert mpi["bytes"].sum() == 0
        cluster.scale(3)
        until("three ranks", lambda: [place.rank for place in update(cluster).layout.ranks] == [0, 1, 2])


def test_the_head_stops_and_its_metrics_are_told_to_be_out_of_reach():
    from workbench.errors import HeadUnreachable

    cluster = MPICluster(1, quiet=True)
    head = cluster.record.process
    os.kill(head.pid, signal.SIGSTOP)
    with (
        dask.config.set({"workbench.connect-timeout": "0.5 s"}),
        pytest.raises(HeadUnreachable),
    ):
        cluster.metrics()
    kill(head.pid)
    until("the head is gone", lambda: head.alive() is False)
    with pytest.raises(HeadUnreachable):
        cluster.metrics()
    cluster.close()


def test_what_was_measured_is_written_by_the_subcommand(cluster, client4, tmp_path):
    import pandas as pd

    run_on_ranks(metered.ring, [1, 2, 3, 4], client=client4)
    until("what was sent", lambda: len(cluster.metrics("operations")))
    record = cluster.record
    assert actions.metrics(record, None, None, cluster).endswith("# EOF")
    table = actions.metrics(record, "operations", None, cluster)
    assert table.startswith("operation,calls,bytes,seconds,waiting\n")
    path = tmp_path / "ranks.parquet"
    assert actions.metrics(record, "ranks", str(path), cluster) == f"{path} has the metrics of cluster 'shared'"
    assert set(pd.read_parquet(path)["rank"]) == {0, 1, 2, 3}
    with raises(InvalidRequest, option="out", given=str(path)):
        actions.metrics(record, None, str(path), cluster)
    with raises(InvalidRequest, option="out", given=str(tmp_path / "nowhere" / "ranks.csv")):
        actions.metrics(record, "ranks", str(tmp_path / "nowhere" / "ranks.csv"), cluster)
    with raises(InvalidRequest, option="table", given="rank"):
        actions.metrics(record, "rank", None, cluster)
