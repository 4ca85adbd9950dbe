"""Values that a cluster keeps without further attention: of notebooks, and of calls."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from distributed import Client
from support import keeping, saving
from support.batch import Doing
from support.processes import gone, processes_of, until
from support.raised import raises

import workbench
from workbench import MPICluster, ml, place, restore, run_on_ranks
from workbench.checkpoint import folder
from workbench.errors import CheckpointNotFound, InvalidRequest, PlacementError

X = np.arange(22.0).reshape(11, 2)
TABLE = pd.DataFrame({"number": np.arange(7), "word": list("abcabca")}, index=pd.Index(range(7, 14), name="key"))


@pytest.fixture(scope="module")
def cluster2(tmp_path_factory):
    """A cluster of 2 ranks that saves only what a test requests, since the interval is long."""
    path = tmp_path_factory.mktemp("kept") / "folder"
    with MPICluster(2, checkpoint=str(path), every="1 day", quiet=True) as cluster:
        yield cluster


@pytest.fixture
def client(cluster2):
    """The current client of a test, on the cluster of 2 ranks."""
    with Client(cluster2) as client:
        yield client


@pytest.fixture(scope="module")
def eager(tmp_path_factory):
    """A client of a cluster of 2 ranks whose calls write a version whenever the version before is complete."""
    path = tmp_path_factory.mktemp("eager") / "folder"
    with MPICluster(2, checkpoint=str(path), every="10 ms", quiet=True) as cluster, Client(cluster) as client:
        yield client


@pytest.fixture
def root(cluster2, client):
    """Return the folder of the checkpoint; after the test nothing is kept."""
    yield cluster2.record.kept_in
    keeping.forget(client)


def newest(root):
    """Return the names in the newest version, if there is one."""
    try:
        return {*folder.read(Path(root)).entries}
    except CheckpointNotFound:
        return set()


# -- of notebooks --------------------------------------------------------------------------------------------


def test_what_a_notebook_keeps_comes_back_without_a_path(client, root):
    model = ml.StandardScaler().fit(place(X))
    version = workbench.keep(X=place(X), table=place(TABLE), model=model, note={"epoch": (3, None)})
    assert str(version.parent) == root

    found = restore()

    np.testing.assert_array_equal(found.X.compute(), X)
    pd.testing.assert_frame_equal(found.table.compute(), TABLE)
    np.testing.assert_array_equal(found.model.mean_, X.mean(axis=0))
    assert found.note == {"epoch": (3, None)}


def test_a_version_has_all_that_was_kept_before_and_not_what_is_kept_no_longer(client, root):
    workbench.keep(first=1, second=place(X))
    version = workbench.keep(third=3)
    assert newest(root) == {"first", "second", "third"}
    assert workbench.keep(second=None, third=4).parent == version.parent
    assert vars(restore()) == {"first": 1, "third": 4}


def test_what_is_kept_is_saved_before_a_move_and_from_the_other_ranks_after_the_move(cluster2, client, root):
    placed = place(X)
    workbench.keep(X=placed)
    run_on_ranks(keeping.add, placed, 1)
    run_on_ranks(keeping.keep, rows=True, u=lambda comm: np.arange(3) + 10 * comm.rank)
    cluster2.scale(3)
    try:
        assert [each.tolist() for each in run_on_ranks(keeping.kept, "u")] == [[0, 1], [2, 10], [11, 12]]
        np.testing.assert_array_equal(restore().X.compute(), X + 1)
        assert workbench.keep(moved=True).name != workbench.keep(moved=True).name
        np.testing.assert_array_equal(restore().X.compute(), X + 1)
    finally:
        cluster2.scale(2)


def test_blocks_that_were_lost_are_in_later_versions_as_they_were_saved(cluster2, client, root):
    workbench.keep(X=place(X))
    run_on_ranks(keeping.keep, u=1)
    cluster2.restart()
    run_on_ranks(keeping.keep, u=2)

    workbench.keep(note="after the restart")

    found = restore()
    np.testing.assert_array_equal(found.X.compute(), X)
    assert (found.u, found.note) == ([2, 2], "after the restart")
    until("the loss is reported", lambda: "X: the data are lost" in cluster2.logs())


@pytest.mark.parametrize(
    ("named", "error", "option"),
    [
        ({"not a name": 1}, InvalidRequest, "name"),
        ({"also no name": None}, InvalidRequest, "name"),
        ({"f": np.sum}, InvalidRequest, "f"),
        ({"X": da.ones(4)}, PlacementError, ""),
    ],
)
def test_what_a_notebook_cannot_keep_is_refused(client, root, named, error, option):
    workbench.keep(before=1)
    with raises(error, option=option):
        workbench.keep(**named)
    assert newest(root) == {"before"}


# -- of calls ------------------------------------------------------------------------------------------------


def test_a_call_continues_with_the_values_in_memory(client, root):
    value = {"step": 3, "weights": np.arange(4.0)}
    run_on_ranks(keeping.keep, state=value, mine=lambda comm: comm.rank)
    assert newest(root) == set()

    assert run_on_ranks(keeping.kept, "mine") == [0, 1]
    for found in run_on_ranks(keeping.kept, "state"):
        assert found["step"] == 3
        np.testing.assert_array_equal(found["weights"], value["weights"])
    assert run_on_ranks(keeping.kept, "missing", "default") == ["default"] * 2


def test_a_restart_saves_what_calls_keep_and_later_calls_read_the_files(cluster2, client, root):
    run_on_ranks(keeping.keep, mine=lambda comm: np.full(2, comm.rank))
    cluster2.restart()
    assert [each.tolist() for each in run_on_ranks(keeping.kept, "mine")] == [[0, 0], [1, 1]]
    assert [each.tolist() for each in restore().mine] == [[0, 0], [1, 1]]


def test_arrays_that_are_divided_by_rows_are_read_by_any_number_of_ranks(client, root):
    run_on_ranks(keeping.keep, rows=True, u=lambda comm: X[: 3 + 5 * comm.rank])
    workbench.keep(saved=True)
    whole = np.concatenate([X[:3], X[:8]])

    (alone,) = run_on_ranks(keeping.kept, "u", ranks=[1])

    np.testing.assert_array_equal(alone, whole)
    np.testing.assert_array_equal(restore().u, whole)


def test_other_values_are_read_by_as_many_ranks_only(client, root):
    run_on_ranks(keeping.keep, saved=None, u=lambda comm: X[: 3 + 5 * comm.rank])
    workbench.keep(saved=True, placed=place(X))
    with raises(InvalidRequest, option="name", given="u"):
        run_on_ranks(keeping.kept, "u", ranks=[0])
    with raises(InvalidRequest, option="name", given="placed"):
        run_on_ranks(keeping.kept, "placed")
    assert run_on_ranks(keeping.kept, "saved", ranks=[0]) == [True]


def test_a_rank_that_fails_between_two_keeps_leaves_the_values_of_the_last_whole_one(client, root):
    workbench.keep(u=0)
    workbench.keep(u=None)
    run_on_ranks(keeping.keep, u=1)
    workbench.keep(saved=True)
    with pytest.raises(ArithmeticError):
        run_on_ranks(keeping.keep_torn, u=2)
    assert run_on_ranks(keeping.kept, "u") == [1, 1]

    workbench.keep(saved="again")
    assert restore().u == [1, 1]


def test_a_call_keeps_a_value_no_longer(client, root):
    run_on_ranks(keeping.keep, u=1, v=2)
    workbench.keep(saved=True)
    run_on_ranks(keeping.keep, u=None)
    assert run_on_ranks(keeping.kept, "u", "default") == ["default"] * 2
    workbench.keep(saved=True)
    assert newest(root) == {"v", "saved"}


@pytest.mark.parametrize(
    ("rows", "named", "fields"),
    [
        (False, {"not a name": 1}, {"option": "name", "given": "not a name"}),
        (False, {"f": [np.sum]}, {"option": "f[0]"}),
        (True, {"u": [1]}, {"option": "u", "given": "list"}),
    ],
)
def test_what_a_call_cannot_keep_is_refused(client, root, rows, named, fields):
    with raises(InvalidRequest, **fields):
        run_on_ranks(keeping.keep, rows=rows, **named)


def test_a_long_call_writes_what_it_keeps(eager):
    root = eager.cluster.record.kept_in
    assert run_on_ranks(keeping.keep_until_written, root, step=7, client=eager) == [True, True]
    assert restore(client=eager).step == [7, 7]


def test_a_full_disk_is_a_warning_and_the_call_continues(eager):
    run_on_ranks(saving.limited, 100_000, client=eager)
    try:
        warned = run_on_ranks(keeping.keep_until_warned, large=np.zeros(100_000), client=eager)
    finally:
        run_on_ranks(saving.limited, -1, client=eager)
    assert "File too large" in warned[0]
    assert run_on_ranks(keeping.kept, "large", client=eager)[1].shape == (100_000,)
    root = eager.cluster.record.kept_in
    assert run_on_ranks(keeping.keep_until_written, root, large=np.ones(100_000), client=eager) == [True, True]


# -- before the end ------------------------------------------------------------------------------------------


def test_the_head_saves_at_the_end_without_a_client_and_a_later_cluster_restores_by_the_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cluster = MPICluster(2, name="former", every="1 day", quiet=True)
    processes = processes_of(cluster)
    with Client(cluster):
        placed = place(X)
        workbench.keep(X=placed)
        run_on_ranks(keeping.add, placed, 1)
        run_on_ranks(keeping.keep, rows=True, u=lambda comm: X[comm.rank :: 2])
    os.kill(cluster.record.process.pid, signal.SIGTERM)
    until("nothing is left", lambda: all(map(gone, processes)))
    cluster.close()

    with MPICluster(3, quiet=True) as later, Client(later):
        found = restore("former")
        np.testing.assert_array_equal(found.X.compute(), X + 1)
        np.testing.assert_array_equal(found.u, np.concatenate([X[::2], X[1::2]]))
        with pytest.raises(CheckpointNotFound):
            restore("another")
        with pytest.raises(CheckpointNotFound):
            restore()
    assert [each.name for each in tmp_path.iterdir()] == ["workbench-kept"]


def test_a_call_learns_that_its_job_ends_soon_and_its_last_values_are_saved(tmp_path):
    root, began = tmp_path / "kept", tmp_path / "began"
    cluster = MPICluster(2, checkpoint=str(root), every="1 day", quiet=True)
    processes = processes_of(cluster)
    with Client(cluster) as client:
        assert run_on_ranks(keeping.stops) == [False, False]
        call = Doing(lambda: run_on_ranks(keeping.keep_until_told, began, client=client))
        until("the call keeps values", began.exists)
        os.kill(cluster.record.process.pid, signal.SIGUSR1)
        steps = call.result()
        assert steps[0] == steps[1]
        until("nothing is left", lambda: all(map(gone, processes)))
    cluster.close()
    with MPICluster(1, quiet=True) as later, Client(later):
        assert restore(root).last == steps
