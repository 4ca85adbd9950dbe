"""SPMD functions: their arguments, and their results."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client, wait
from optuna import create_study
from support.methods import Scale
from support.processes import DEADLINE, until
from support.raised import raises
from support.spmd import decorated_mean, decorated_total, held, place_of, spill, total

from workbench import MPICluster, blocks, broadcast, map_blocks, place, run_on_ranks, spmd
from workbench.cells import client as cells_client
from workbench.errors import CollectiveFailed, InvalidRequest, PlacementError
from workbench.placement.in_use import is_aligned
from workbench.placement.inside import taken_along
from workbench.session.current import current_worker
from workbench.tune import tune

TABLE = np.arange(40_004.0).reshape(-1, 2)
FRAME = pd.DataFrame({"delay": np.arange(1000.0), "carrier": list("abcd") * 250})


def addresses(client, collection):
    """Return key and address of each block, in rank order."""

    def look(keys, dask_worker):
        return {key: block.ctypes.data for key, block in dask_worker.data.items() if key in keys}

    keys = [future.key for future in blocks(collection)]
    found = {key: its for told in client.run(look, set(keys)).values() for key, its in told.items()}
    return [(str(key), found[key]) for key in keys]


@pytest.mark.mpi_flavor
def test_all_ranks_run_it_and_what_each_returns_comes_in_their_order(client4):
    assert run_on_ranks(place_of, client=client4) == [(rank, 4, rank) for rank in range(4)]


@pytest.mark.mpi_flavor
def test_blocks_come_as_they_lie_there_contiguous_and_aligned(client4):
    X, y = place(da.from_array(TABLE, chunks=(999, 1)), TABLE[:, 0].copy())

    def look(comm, X, y, *, again):
        return held(comm, X, y, again), is_aligned(X), is_aligned(y), X.shape, bool((X[:, 0] == y).all())

    told = run_on_ranks(look, X, y, again=X)

    lie = zip(addresses(client4, X), addresses(client4, y), strict=True)
    rows = [5001, 5001, 5000, 5000]
    assert told == [([x, y, x], True, True, (n, 2), True) for (x, y), n in zip(lie, rows, strict=True)]
    assert run_on_ranks(total, X) == [TABLE.sum()] * 4
    assert run_on_ranks(total, X, result="root") == TABLE.sum()


def test_what_is_written_to_a_block_stays_in_it(client4):
    X = place(np.zeros((8, 2)))

    def fill(comm, X):
        X[:] = comm.rank

    run_on_ranks(fill, X)
    assert X.compute()[:, 0].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_what_is_written_to_a_block_stays_in_it_when_it_is_spilled_in_the_middle(client4):
    X = place(np.zeros((8, 2)))
    wait(blocks(X))

    def fill(comm, X):
        X[0] = comm.rank + 1
        spill()
        X[1] = comm.rank + 1

    run_on_ranks(fill, X)
    assert X.compute()[:, 0].tolist() == [1, 1, 2, 2, 3, 3, 4, 4]


def test_a_copy_on_another_rank_from_before_a_call_is_not_read_after_it(client4):
    X = place(np.zeros((8, 2)))
    wait([client4.submit(len, block, workers=[3], pure=False) for block in blocks(X)])
    assert {len(holders) for holders in client4.who_has(blocks(X)[:3]).values()} == {2}

    def fill(comm, X):
        X[:] = 1

    run_on_ranks(fill, X)

    assert {len(holders) for holders in client4.who_has(blocks(X)).values()} == {1}
    assert client4.submit(lambda *blocks: sum(map(np.sum, blocks)), *blocks(X), workers=[3]).result() == 16


def test_any_other_argument_comes_as_it_is(client4):
    given = (7, "sieben", None, [1, {"two": np.arange(3)}], np.empty((0, 3)), np.float32(1.5))

    def look(comm, *arguments, **named):
        return arguments, named

    for arguments, named in run_on_ranks(look, *given, client=client4, name=given):
        np.testing.assert_equal(arguments, given)
        np.testing.assert_equal(named, {"name": given})


class Unmeasured:
    """An object whose size is unknown."""

    def __sizeof__(self):
        raise TypeError("without a size")


def test_objects_without_an_estimate_of_their_size_reach_calls_cells_and_studies(client4):
    itself = [3]
    itself.append(itself)
    for thing in (itself, Unmeasured()):

        def kinds(comm, given, thing=thing):
            return type(given).__name__, type(thing).__name__

        name = type(thing).__name__
        assert run_on_ranks(kinds, thing, client=client4) == [(name, name)] * 4
        cell = cells_client.run("type(thing).__name__", {"thing": thing}, client=client4, values=True)
        assert cell.values() == [name] * 4
        assert taken_along(kinds)["thing"] == 0
        study = tune(lambda _, trial, thing: len(type(thing).__name__), create_study(), 1, thing, client=client4)  # noqa: ARG005
        assert study.best_value == len(name)


def test_a_large_argument_goes_by_broadcast_and_with_the_call(client4):
    weights = np.arange(1_000_000.0)
    told = run_on_ranks(held, weights, client=client4)
    [[(key, _)], *others] = told
    assert key.startswith("broadcast-")
    assert {name for [(name, _)] in others} == {key}

    def kept(dask_worker):
        return [name for name in map(str, dask_worker.data) if name == key]

    def released():
        gc.collect()  # of the client: what went into the call may be in a cycle
        return not any(client4.run(kept).values())

    until("the ranks let go of it", released)


def test_a_function_with_large_globals_goes_by_broadcast(client4):
    table = np.arange(1_000_000.0)

    def look(comm, X):
        worker = current_worker()
        return float(table[comm.rank] + X.sum()), sum(str(key).startswith("broadcast-bytes-") for key in worker.data)

    assert run_on_ranks(look, place(np.ones(8))) == [(2.0 + rank, 1) for rank in range(4)]


def test_a_large_result_comes_as_it_was_returned(client4):
    def returned(comm):
        return np.full(500_000, float(comm.rank))

    assert [its.sum() for its in run_on_ranks(returned, client=client4)] == [500_000 * rank for rank in range(4)]
    with raises(CollectiveFailed, option="limit"):
        run_on_ranks(returned, client=client4, limit="15 MiB")


def test_futures_come_as_what_they_stand_for(client4):
    slow = client4.submit(lambda: np.arange(5), pure=False, workers=[3])
    sent = broadcast(client4, {"w": 2})
    X = place(TABLE)

    def look(comm, X, w, sent, *, more):
        return len(X), w.sum(), sent, more.sum()

    assert run_on_ranks(look, X, slow, sent, more=slow) == [(n, 10, {"w": 2}, 10) for n in (5001, 5001, 5000, 5000)]
    assert run_on_ranks(lambda _, w: w.sum(), slow, client=client4) == [10] * 4


def test_the_error_of_a_future_is_that_of_the_call(client4):
    failed = client4.submit(lambda: 1 // 0, pure=False)
    with pytest.raises(ZeroDivisionError):
        run_on_ranks(total, failed, client=client4)
    with pytest.raises(ZeroDivisionError):
        run_on_ranks(total, place(da.ones(100, chunks=10).map_blocks(lambda block: block // (1 // 0), dtype=float)))
    assert run_on_ranks(total, client=client4) == [6] * 4


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)], ids=["one axis", "two axes", "three axes"])
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "complex128", ">i4", "M8[ns]"])
def test_arrays_that_ranks_make_become_one(client4, shape, dtype):
    def make(comm, shape, dtype):
        return np.full((comm.rank, *shape), comm.rank).astype(dtype)

    made = run_on_ranks(make, shape, dtype, result="blocks", client=client4)

    assert isinstance(made, da.Array)
    assert made.chunks == ((0, 1, 2, 3), *((length,) for length in shape))
    assert made.dtype == np.dtype(dtype).newbyteorder("=")
    expected = np.concatenate([np.full((rank, *shape), rank).astype(dtype) for rank in range(4)])
    np.testing.assert_array_equal(made.compute(), expected)
    np.testing.assert_array_equal(da.flip(made, 0).compute(), expected[::-1])


def test_made_blocks_stay_on_their_ranks_and_go_into_the_next_call_uncopied(client4):
    X = place(TABLE)
    made = run_on_ranks(lambda comm, X: (X.T[::-1] + comm.rank).T, X, result="blocks")

    holders = client4.who_has(blocks(made))
    assert [set(holders[future.key]) for future in blocks(made)] == [
        set(client4.who_has(blocks(X))[future.key]) for future in blocks(X)
    ]
    told = run_on_ranks(lambda comm, X, made: (held(comm, made)[0], is_aligned(made), len(X) == len(made)), X, made)
    assert told == [(its, True, True) for its in addresses(client4, made)]
    assert client4.gather(map_blocks(is_aligned, made)) == [True] * 4
    assert run_on_ranks(total, made, result="root") == float(made.sum().compute())
    assert place(made).sum().compute() == made.sum().compute()


def test_made_blocks_go_when_nobody_wants_them_and_policies_of_dask_leave_them(client4):
    made = run_on_ranks(lambda comm: np.full(10, comm.rank), result="blocks", client=client4)
    home = client4.who_has(blocks(made))
    client4.replicate(blocks(made))
    client4.replicate(blocks(made), n=1)
    client4.amm.run_once()
    now = client4.who_has(blocks(made))
    assert all(set(home[key]) <= set(now[key]) for key in home)
    assert made.sum().compute() == 60

    del made
    until("they are gone", lambda: not any(client4.run(lambda dask_worker: len(dask_worker.data)).values()))


def test_a_block_that_is_returned_as_it_came_is_not_copied_and_a_part_of_it_is(client4):
    X = place(TABLE)
    part, same = run_on_ranks(lambda _, X: (X[:5], X), X, result="blocks")
    lie = [address for _, address in addresses(client4, X)]
    assert [address for _, address in addresses(client4, same)] == lie
    assert not {address for _, address in addresses(client4, part)} & {*lie}
    assert part.shape == (20, 2)
    del X
    assert same.sum().compute() == TABLE.sum()


def test_frames_and_series_go_there_and_come_back(client4):
    frame = place(FRAME)

    def split(comm, frame):
        mine = frame[frame.carrier == "abcd"[comm.rank]]
        return mine, frame["delay"] * 2, frame.delay.to_numpy()

    mine, twice, array = run_on_ranks(split, frame, result="blocks")

    assert isinstance(mine, dd.DataFrame)
    assert isinstance(twice, dd.Series)
    assert list(mine.columns) == ["delay", "carrier"]
    pd.testing.assert_series_equal(twice.compute(), FRAME["delay"] * 2)
    np.testing.assert_array_equal(array.compute(), FRAME.delay)
    assert run_on_ranks(lambda _, mine: set(mine.carrier), mine) == [{"a"}, {"b"}, {"c"}, {"d"}]
    assert len(mine) == len(mine.compute()) == 250


def test_empty_blocks_are_blocks(client4):
    def only_on_2(comm):
        rows = 4 if comm.rank == 2 else 0
        return np.ones((rows, 3)), pd.DataFrame({"a": np.ones(rows)})

    array, frame = run_on_ranks(only_on_2, result="blocks", client=client4)

    assert array.chunks[0] == (0, 0, 4, 0)
    assert run_on_ranks(lambda _, a, f: (a.shape, f.shape), array, frame)[1:3] == [
        ((0, 3), (0, 1)),
        ((4, 3), (4, 1)),
    ]
    assert run_on_ranks(total, array, result="root") == 12
    assert array.sum().compute() == len(frame) * 3 == 12


def test_ranks_without_anything_are_an_empty_array(client4):
    nothing = run_on_ranks(lambda _: np.empty((0, 2)), result="blocks", client=client4)
    assert nothing.compute().shape == (0, 2)
    assert run_on_ranks(total, nothing) == [0] * 4


def test_a_tuple_of_one_stays_a_tuple_and_of_none_too(client4):
    [one] = run_on_ranks(lambda _: (np.ones(2),), result="blocks", client=client4)
    assert one.sum().compute() == 8
    assert run_on_ranks(lambda _: (), client=client4) == [()] * 4


@pytest.mark.mpi_flavor
def test_a_part_of_the_ranks_has_a_communicator_of_its_own(client4):
    X = place(TABLE, per="node")
    assert run_on_ranks(lambda comm, X: (*place_of(comm), len(X)), X) == [(0, 1, 0, len(TABLE))]
    assert run_on_ranks(total, X) == [TABLE.sum()]
    assert run_on_ranks(total, client=client4) == [6] * 4
    made = run_on_ranks(lambda _, X: X + 1, X, result="blocks")
    assert run_on_ranks(lambda comm, *_: place_of(comm), X, made) == [(0, 1, 0)]


def test_a_decorated_function_is_called_without_the_communicator(client4):
    X = place(TABLE)
    assert decorated_total(X) == [TABLE.sum()] * 4
    assert decorated_mean(X) == TABLE.mean()
    assert decorated_mean.__name__ == "decorated_mean"
    assert decorated_total.submit(X).result(DEADLINE) == [TABLE.sum()] * 4

    @spmd(client=client4, result="blocks")
    def ranks(comm, times=1):
        return np.full(times, comm.rank)

    assert ranks().compute().tolist() == [0, 1, 2, 3]
    assert ranks(times=2).compute().tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_decorated_function_can_be_used_within_another_and_in_tasks(client4):
    @spmd(client=client4)
    def half(comm, X):
        return decorated_total(comm, X) / 2

    X = place(TABLE)
    assert half(X) == [TABLE.sum() / 2] * 4
    assert run_on_ranks(half, X) == [TABLE.sum() / 2] * 4


def test_a_function_of_a_script_runs_on_the_ranks(cluster4):
    program = (
        "from distributed import Client; from workbench import MPICluster, spmd\n"
        "SEVEN = 7\n"
        "@spmd(result='root')\n"
        "def seven(comm): return comm.allreduce(SEVEN)\n"
        "with MPICluster.attach('shared', quiet=True) as cluster, Client(cluster): print(seven())"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=DEADLINE, check=True)
    assert told.stdout == "28\n"


def test_a_method_is_called_with_its_object(client4):
    class Local(Scale):  # which the ranks cannot import
        @spmd
        def thrice(self, comm, X):
            return 3 * self.total(comm, X)

    X = place(TABLE)
    assert Scale(2).total(X) == 2 * TABLE.sum()
    assert Scale(2).twice.submit(X).result(DEADLINE) == [4 * TABLE.sum()] * 4
    assert Local(2).thrice(X) == [6 * TABLE.sum()] * 4


def test_heartbeats_go_on_and_the_worker_is_as_before(client4):
    def ticks(dask_worker):
        return sorted(name for name, callback in dask_worker.periodic_callbacks.items() if callback.is_running())

    before = client4.run(ticks)
    assert run_on_ranks(total, client=client4) == [6] * 4
    assert client4.run(ticks) == before


def test_a_call_within_a_cell_is_refused(client4):
    cell = "import workbench\nworkbench.run_on_ranks(lambda comm: comm.rank)"
    with pytest.raises(CollectiveFailed, match=r"a %%mpi cell is not possible, .*the plain function, fn\(comm"):
        cells_client.run(cell, client=client4).check()


def test_calls_run_in_the_world_that_replaces_the_first_with_the_blocks_of_before():
    with MPICluster(2, quiet=True) as cluster, Client(cluster) as client:
        X, made = place(TABLE), run_on_ranks(lambda comm: np.full(2, comm.rank), result="blocks", client=client)
        cluster.scale(3)
        assert run_on_ranks(place_of, client=client) == [(rank, 3, rank) for rank in range(3)]
        assert run_on_ranks(total, X) == [TABLE.sum()] * 2
        assert run_on_ranks(lambda comm, block: (comm.size, block.tolist()), made) == [(2, [0, 0]), (2, [1, 1])]
        assert run_on_ranks(lambda comm, X: (comm.size, len(X)), place(X)) == [(3, 6668), (3, 6667), (3, 6667)]
        with raises(InvalidRequest, option="ranks", given="[3]", allowed="ranks 0-2: the cluster has no rank 3"):
            run_on_ranks(total, client=client, ranks=[3])
        cluster.scale(1)
        with pytest.raises(PlacementError):
            run_on_ranks(total, X)
        assert run_on_ranks(total, place(X)) == [TABLE.sum()]


@pytest.mark.parametrize(
    ("inside", "words"),
    [
        (lambda X, _: [X], "a dask.Array is inside a list"),
        (lambda _, future: (7, future), "a distributed.Future is inside a tuple"),
        (lambda X, _: {"X": X}, "a dask.Array is inside a dict"),
    ],
)
def test_what_lies_on_the_ranks_is_refused_inside_of_other_arguments(client4, inside, words):
    what = inside(place(TABLE), client4.submit(len, "abc"))
    with pytest.raises(InvalidRequest, match=rf"{words}\. Pass placed arrays and futures as separate arguments"):
        run_on_ranks(total, what, client=client4)


def test_a_large_argument_that_cannot_be_sent_is_refused_as_a_small_one_is(client4, caplog):
    words = "^total cannot be sent to the ranks with its arguments: TypeError: cannot pickle '_thread.lock' object"
    for size in (1, 10**6):
        with pytest.raises(InvalidRequest, match=words):
            run_on_ranks(total, [np.zeros(size), threading.Lock()], client=client4)
    assert not caplog.records


def test_buffers_are_compared_in_each_operation_if_the_user_asks_for_this(client4):
    def scan(comm):
        comm.Scan(np.ones(1), np.ones(1))
        comm.Scan(np.ones(1, "i8" if comm.rank else "f8"), np.ones(1, "i8" if comm.rank else "f8"))

    run_on_ranks(scan, client=client4)
    with dask.config.set({"workbench.spmd.check-buffers": True}), raises(InvalidRequest, given="Scan"):
        run_on_ranks(scan, client=client4)


def test_results_larger_than_allowed_are_refused_with_their_size(client4):
    def much(comm):
        return np.ones(100_000)

    with dask.config.set({"workbench.spmd.result-limit": "1 MiB"}):
        with pytest.raises(RuntimeError):
            run_on_ranks(much, client=client4)
        assert len(run_on_ranks(much, client=client4, result="root")) == 100_000
        assert len(run_on_ranks(much, client=client4, limit="4 MB")) == 4
        assert len(run_on_ranks(much, client=client4, limit=float("inf"))) == 4
        assert run_on_ranks(much, client=client4, result="blocks").sum().compute() == 400_000
