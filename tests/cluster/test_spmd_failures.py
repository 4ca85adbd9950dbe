"""SPMD calls that fail, are interrupted, canceled or abandoned: they end on all ranks, and the next call works."""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
from concurrent.futures import CancelledError, ThreadPoolExecutor

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster
from support import spmd as functions
from support.processes import DEADLINE, kill, until
from support.raised import raises
from support.spmd import WAYS, be_patient, doing, fail, hang, in_c, in_plain_mpi, loop, raise_on, total

from workbench import MPICluster, place, run_on_ranks
from workbench.collective.client import PendingCall
from workbench.errors import CollectiveFailed, CollectiveTimeout, InvalidRequest, PlacementError, RankLost
from workbench.launch import mpi_library

# All of it takes minutes: `make test-long`.
CYCLES = int(os.environ.get("WORKBENCH_CYCLES", "5"))
# Seconds from a failure on a rank, or Ctrl-C, to the error in the notebook: two, where nothing else runs.
TOLD_WITHIN = 20.0
TABLE = np.arange(40_004.0).reshape(-1, 2)

# Arguments of mpiexec with which the MPI is another one in what happens when calls fail.
KINDS = {"as it comes": []}
if mpi_library.find().flavor == "openmpi":
    KINDS["without ULFM"] = ["--mca", "mpi_ft_enable", "0"]


@pytest.fixture(params=KINDS.values(), ids=KINDS.keys())
def client(request):
    """A client of a cluster of each kind."""
    if not request.param:
        yield request.getfixturevalue("client4")
        return
    with dask.config.set({"workbench.mpi.extra-args": request.param}):
        cluster = MPICluster(4, quiet=True)
    with cluster, Client(cluster) as client:
        client.run_on_scheduler(be_patient)
        yield client


def works(client, **options):
    """Return whether a call works, and nothing is left of others."""
    return run_on_ranks(total, client=client, timeout=DEADLINE, **options) == [6] * 4


def back(client):
    """Return whether all ranks are back from a call that has ended, so that the next is not refused."""
    try:
        return bool(run_on_ranks(total, client=client, timeout=DEADLINE))
    except CollectiveFailed:
        return False


def idle(client):
    return all(what == "" for _, what in client.run(doing).values())


def waiting(client, missing=1):
    """Return whether all ranks are in a call, and all but one in MPI."""
    told = dict(client.run(doing).values())
    return told.pop(missing) is None and all(told.values())


@pytest.mark.mpi_flavor
def test_a_rank_that_fails_in_the_middle_ends_the_call_on_all_50_times_of_50(client, record_property):
    ways = list(WAYS)
    slowest = 0.0
    for cycle in range(max(CYCLES, len(ways))):
        which, way = cycle % 4, ways[cycle % len(ways)]
        with raises(ValueError, __notes__=[f"raised on rank {which}, in fail"]) as caught:
            run_on_ranks(fail, way, which, client=client)
        slowest = max(slowest, time.time() - caught.value.args[1])
        assert "spmd.py" in "".join(traceback.format_tb(caught.value.__traceback__)[-1:])
        assert works(client)
    record_property("slowest", slowest)
    assert slowest < TOLD_WITHIN


@pytest.fixture
def notebook(cluster4):
    """A process that makes calls, each for a line that it is sent."""
    with subprocess.Popen(
        [sys.executable, "-m", "support.interrupted", cluster4.name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    ) as process:
        assert process.stdout.readline() == "ready\n"
        yield process
        process.stdin.close()
        assert process.wait(DEADLINE) == 0


@pytest.mark.mpi_flavor
def test_ctrl_c_ends_the_call_on_all_ranks_50_times_of_50(client4, notebook, record_property):
    ways = [*WAYS, "loop"]
    slowest = 0.0
    for cycle in range(max(CYCLES, len(ways))):
        way = ways[cycle % len(ways)]
        print(way, file=notebook.stdin)
        until(f"all ranks to wait in {way}", lambda: waiting(client4))
        begin = time.time()
        notebook.send_signal(signal.SIGINT)
        word, at, note = notebook.stdout.readline().strip().split(maxsplit=2)
        slowest = max(slowest, float(at) - begin)
        assert (word, note.partition(" ")[2].rstrip(".")) == ("interrupted", "was canceled"), way
        assert notebook.stdout.readline() == "6.0\n"
    record_property("slowest", slowest)
    assert slowest < TOLD_WITHIN
    assert works(client4)


def test_ctrl_c_while_the_call_is_handed_over_ends_the_call(client4, monkeypatch):
    start = PendingCall.start

    def interrupted(call):
        start(call)
        until("all ranks to wait", lambda: waiting(client4))
        raise KeyboardInterrupt

    monkeypatch.setattr("workbench.collective.protocol.CLIENT_CALL_END_S", DEADLINE)
    with monkeypatch.context() as starting:
        starting.setattr(PendingCall, "start", interrupted)
        with pytest.raises(KeyboardInterrupt) as caught:
            run_on_ranks(hang, "Allreduce", 1, "/never", client=client4)
    assert caught.value.__notes__ == ["hang was canceled."]
    assert works(client4)


def test_a_client_that_is_killed_ends_its_call_on_all_ranks(cluster4, client4):
    process = subprocess.Popen(
        [sys.executable, "-m", "support.interrupted", cluster4.name], stdin=subprocess.PIPE, text=True
    )
    print("Allreduce", file=process.stdin, flush=True)
    until("all ranks to wait", lambda: waiting(client4))
    kill(process)
    process.wait(DEADLINE)
    process.stdin.close()
    until("the call to end", lambda: idle(client4))
    assert works(client4)


@pytest.mark.parametrize("way", ["Allreduce", "loop"])
def test_to_cancel_the_future_ends_the_call_on_all_ranks(client4, way):
    from workbench import spmd

    call = spmd(client=client4)
    future = call(loop).submit(1) if way == "loop" else call(hang).submit(way, 1, "/never")
    until("all ranks to wait", lambda: waiting(client4))
    assert future.cancel()
    with pytest.raises(CancelledError):
        future.result(DEADLINE)
    assert works(client4)
    assert idle(client4)


@pytest.mark.parametrize("way", ["Allreduce", "loop"])
def test_the_time_of_a_call_can_be_limited(client4, way):
    call = (loop, 1) if way == "loop" else (hang, way, 1, "/never")
    told, seconds = "", 0.5
    while "and was ended" not in told:  # it may take longer to begin
        assert seconds < DEADLINE
        with pytest.raises(CollectiveTimeout) as caught:
            run_on_ranks(*call, client=client4, timeout=seconds)
        told, seconds = str(caught.value), 2 * seconds
    assert re.search(r"did not end in time on the ranks, and was ended.*timeout=", told)
    assert works(client4)


def test_c_code_that_cannot_be_ended_is_named_and_waited_for(client4, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with raises(ValueError, args=("while another is in C",)) as caught:
        run_on_ranks(in_c, 2, tmp_path, client=client4)
    first, note = caught.value.__notes__
    assert first == "raised on rank 3, in in_c"
    assert "But rank 2 is in user code at spmd.py:" in note
    assert "cannot be interrupted. No other SPMD call can begin on a rank that has not returned." in note
    with raises(CollectiveFailed, ranks=(2,)):
        run_on_ranks(total, client=client4)
    pipe.write_text("wake up")
    until("the rank to come back", lambda: back(client4))
    assert works(client4)


def test_mpi_in_c_code_is_ended_where_the_mpi_can_do_that():
    with MPICluster(3, quiet=True) as cluster, Client(cluster) as client:
        with raises(ValueError) as caught:
            run_on_ranks(in_plain_mpi, 1, client=client)
        assert caught.value.args[0] == "while others are in plain MPI"
        assert time.time() - caught.value.args[1] < TOLD_WITHIN
        until("the ranks to come back", lambda: back(client))
        assert run_on_ranks(total, client=client) == [3] * 3


def test_the_traceback_is_that_of_the_rank_and_ends_in_its_code(client4):
    with raises(ValueError, __notes__=["raised on rank 2, in divide"]) as caught:
        run_on_ranks(functions.divide, 0, client=client4)
    shown = "".join(traceback.format_exception(caught.value))
    assert "in divide" in shown
    assert "in _quotient" in shown
    assert "ZeroDivisionError" in shown
    assert "return 1 // by" in shown
    assert "rank_call.py" not in shown
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert works(client4)


def test_an_error_of_several_ranks_names_the_others(client4):
    def raise_all(comm):
        raise KeyError(f"rank {comm.rank}")

    with pytest.raises(KeyError) as caught:
        run_on_ranks(raise_all, client=client4)
    which = caught.value.args[0].removeprefix("rank ")
    first, *others = caught.value.__notes__
    assert first == f"raised on rank {which}, in raise_all"
    one = r"rank \d failed with KeyError: 'rank \d'"
    assert all(re.fullmatch(rf"{one}(; {one})*\.", note) for note in others)
    assert works(client4)


def test_an_error_that_pickle_alone_could_not_make_again_arrives_as_itself(client4):
    with pytest.raises(functions.TwoWords):
        run_on_ranks(functions.raise_two_words, client=client4)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (functions.raise_locked, r"^Locked: seven locks, raised on rank \d, in raise_locked"),
        (
            functions.raise_unknown,
            r"^Error: of a class that is not there, raised on rank \d, in raise_unknown",
        ),
    ],
)
def test_an_error_that_cannot_travel_is_told_in_words(client4, function, words):
    with pytest.raises(CollectiveFailed, match=words) as caught:
        run_on_ranks(function, client=client4)
    [shown] = [note for note in caught.value.__notes__ if note.startswith("The traceback of that rank:")]
    assert f"in {function.__name__}" in shown
    assert works(client4)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()], ids=repr)
def test_what_ends_other_programs_ends_the_call_only(cluster4, client4, error):
    pids = [rank["pid"] for rank in cluster4.ranks]
    words = f"{type(error).__name__}{': 3' * bool(error.args)}, raised on rank 1, in raise_on"
    with pytest.raises(CollectiveFailed, match=f"^{words}"):
        run_on_ranks(raise_on, 1, error, client=client4)
    assert works(client4)
    assert [rank["pid"] for rank in cluster4.ranks] == pids


def test_sys_exit_on_a_rank_ends_the_call_only(client4):
    with pytest.raises(CollectiveFailed):
        run_on_ranks(functions.leave, 2, client=client4)
    assert works(client4)


def test_the_end_comes_through_code_that_takes_every_error_for_nothing(client4):
    with pytest.raises(CollectiveFailed):
        run_on_ranks(functions.catch_all, 3, client=client4)
    assert works(client4)


def test_abort_ends_the_call_and_not_the_world(client4):
    with pytest.raises(CollectiveFailed):
        run_on_ranks(lambda comm: comm.Abort(3) if comm.rank == 1 else comm.Barrier(), client=client4)
    assert works(client4)


def test_a_call_within_a_call_is_refused(client4):
    with pytest.raises(InvalidRequest) as caught:
        run_on_ranks(functions.nested, client=client4)
    assert ", in nested" in caught.value.__notes__[0]
    assert works(client4)


def test_what_cannot_be_sent_or_read_says_so(client4, tmp_path, monkeypatch):
    lock = threading.Lock()

    def locked(_):
        return lock

    with pytest.raises(InvalidRequest):
        run_on_ranks(locked, client=client4)
    with pytest.raises(InvalidRequest):
        run_on_ranks(total, lock, client=client4)
    with pytest.raises(TypeError) as caught:
        run_on_ranks(lambda _: threading.Lock(), client=client4)
    assert "The return value cannot be sent to the notebook." in caught.value.__notes__
    with raises(CollectiveFailed, ranks=(0,)):
        run_on_ranks(functions.return_unknown, client=client4)

    (tmp_path / "of_the_notebook.py").write_text("def function(comm): return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    import of_the_notebook  # ty: ignore

    with raises(ModuleNotFoundError, name="of_the_notebook") as caught:
        run_on_ranks(of_the_notebook.function, client=client4)
    assert caught.value.__notes__[0].startswith("raised on rank ")
    assert works(client4)


def test_what_cannot_be_asked_for_says_what_can(client4):
    lazy = da.from_array(TABLE, chunks=(999, 2))
    X = place(TABLE)
    with raises(InvalidRequest, option="result", given="rank", allowed=("ranks", "root", "blocks")):
        run_on_ranks(total, client=client4, result="rank")
    with raises(InvalidRequest, option="limit", given="much"):
        run_on_ranks(total, client=client4, limit="much")
    with raises(ValueError, option="timeout", given="soon"):
        run_on_ranks(total, client=client4, timeout="soon")
    with (
        dask.config.set({"workbench.spmd.watchdog": 0}),
        raises(InvalidRequest, option="workbench.spmd.watchdog", given=0),
    ):
        run_on_ranks(total, client=client4)
    with raises(InvalidRequest, option="fn", given=7):
        run_on_ranks(7, client=client4)
    for unplaced in (lazy, lazy[lazy[:, 0] > 7], lazy.sum(), X + 1):
        with pytest.raises(PlacementError):
            run_on_ranks(total, unplaced)
    with pytest.raises(PlacementError):
        place(lazy[lazy[:, 0] > 7])
    for other in (place(TABLE[1:]), place(TABLE, per="node")):
        with pytest.raises(PlacementError):
            run_on_ranks(total, X, other)
    assert works(client4)


def test_objects_come_in_and_do_not_become_blocks(client4):
    X = place(np.array(["one", None, 2, 3.0], object))
    assert run_on_ranks(lambda _, X: X.tolist(), X) == [["one"], [None], [2], [3.0]]
    with pytest.raises(PlacementError) as caught:
        run_on_ranks(lambda _, X: X, X, result="blocks")
    assert "raised on rank" in caught.value.__notes__[0]
    assert works(client4)


MISFITS = {
    "no blocks": (lambda _: 7, "returned an int"),
    "one number": (lambda _: np.float64(7), "the function returned"),
    "no axis": (lambda _: np.array(7), "0 axes"),
    "a list": (lambda _: [np.ones(3)], "returned a list"),
    "nothing on one rank": (lambda comm: np.ones(3) if comm.rank else None, "returned a NoneType"),
    "columns": (lambda comm: np.ones((2, comm.rank)), r"rank 1 returned .*\(2, 1\).*rank 0 .*\(2, 0\)"),
    "axes": (lambda comm: np.ones((2,) * (1 + comm.rank % 2)), "rank 1 returned"),
    "dtypes": (lambda comm: np.ones(2, "fd"[comm.rank == 3]), "rank 3 returned .*float64, and rank 0 .*float32"),
    "kinds": (lambda comm: np.ones(2) if comm.rank else pd.Series(np.ones(2)), "rank 1 returned an array"),
    "names": (lambda comm: pd.DataFrame({"ab"[comm.rank == 2]: [1]}), r"rank 2 returned .*b \(int64\).*a \(int64\)"),
    "numbers": (lambda comm: (np.ones(2),) * (1 + comm.rank), "rank 1 returned a tuple of 2 blocks"),
    "a tuple and none": (
        lambda comm: (np.ones(2),) if comm.rank else np.ones(2),
        "rank 1 returned a tuple of 1 block and rank 0 returned one block",
    ),
    "an empty tuple": (lambda _: (), "empty tuple"),
}


@pytest.mark.parametrize(("function", "words"), MISFITS.values(), ids=MISFITS.keys())
def test_what_does_not_fit_together_as_blocks_is_refused_and_not_kept(client4, function, words):
    gc.collect()  # of what earlier tests have kept
    with pytest.raises(PlacementError, match=words) as refused:
        run_on_ranks(function, client=client4, result="blocks")
    # Also while a notebook keeps its last error.
    until("nothing is kept", lambda: not any(client4.run(lambda dask_worker: len(dask_worker.data)).values()))
    assert refused.value
    assert works(client4)


def test_another_cluster_is_refused():
    with (
        LocalCluster(n_workers=1, processes=False, dashboard_address=":0") as cluster,
        Client(cluster) as client,
        pytest.raises(InvalidRequest),
    ):
        run_on_ranks(total, client=client)


@pytest.mark.mpi_flavor
def test_a_rank_that_dies_in_a_call_is_named_and_a_restart_helps():
    with MPICluster(3, quiet=True) as cluster, Client(cluster) as client, ThreadPoolExecutor(1) as thread:
        X = place(TABLE)
        lost = thread.submit(run_on_ranks, hang, "Allreduce", 1, "/never", client=client)
        until("all ranks to wait", lambda: waiting(client))
        os.kill(cluster.ranks[2]["pid"], signal.SIGKILL)
        with pytest.raises(RankLost):
            lost.result(DEADLINE)
        if mpi_library.find().flavor == "openmpi":
            with raises(RankLost, ranks=(2,)):
                run_on_ranks(total, client=client)
            with pytest.raises(RankLost):
                run_on_ranks(total, X)
            cluster.restart()
        else:  # the others died with it, and all are started again
            again = "the ranks to be there again"
            until(again, lambda: cluster.refresh().state == "ready" and cluster.record.world.starts == 2)
        with pytest.raises(RankLost):
            run_on_ranks(total, X)
        assert run_on_ranks(total, client=client) == [3] * 3
        assert run_on_ranks(total, place(TABLE), result="root") == TABLE.sum()
