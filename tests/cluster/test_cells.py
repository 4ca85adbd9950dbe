"""`%%mpi` cells: code of a notebook on all ranks, and what becomes of it when it goes wrong."""

from __future__ import annotations

import os
import re
import runpy
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import dask
import dask.array as da
import numpy as np
import psutil
import pytest
import zmq
import zmq.utils.monitor
from distributed import Client, wait
from support import unpacked
from support.processes import DEADLINE, GONE_WITHIN, gone, kill, until
from support.raised import raises

import workbench
from workbench import MPICluster, blocks, place, run_on_ranks
from workbench.cells import client as cells_client
from workbench.cells.output import failures, grouped, with_label
from workbench.deploy.folder import ClusterFolder
from workbench.errors import (
    CollectiveFailed,
    CollectiveTimeout,
    HeadUnreachable,
    InvalidRequest,
    PlacementError,
    RankLost,
)


def shown(result):
    """Return what a notebook shows of a cell, as text."""
    return "".join(with_label(piece) for piece in grouped(result.outputs))


def is_usable(client, size=4):
    """Return whether a collective among all ranks works."""
    return cells_client.evaluate("comm.allreduce(1)", client=client) == [size] * size


@pytest.mark.mpi_flavor
def test_a_cell_finds_a_communicator_of_its_ranks_and_what_the_last_one_has_defined(client4):
    first = cells_client.run("mine = comm.scan(rank)\nprint('hello', rank, 'of', size)", client=client4)
    first.check()

    assert shown(first) == "".join(f"rank {rank}: hello {rank} of 4\n" for rank in range(4))
    assert cells_client.evaluate("mine", client=client4) == [0, 1, 3, 6]
    assert cells_client.evaluate("comm.size, comm.rank, rank", ranks=[0, 3], client=client4) == [(2, 0, 0), (2, 1, 3)]


def test_what_ranks_say_alike_is_shown_once(client4):
    result = cells_client.run("print('a'); print('b' if rank == 2 else 'c')\nrank // 4", client=client4)

    assert shown(result) == "ranks 0-1, 3:\na\nc\n0\nrank 2:\na\nb\n0\n"


def test_a_named_array_is_the_very_block_of_each_rank_and_other_objects_come_as_their_values(client4):
    X = place(da.arange(40, chunks=7), client=client4)
    future = client4.submit(lambda: {"learned": 7}, pure=False)

    def address(dask_worker):
        return [
            value.ctypes.data
            for key, value in dask_worker.data.items()
            if isinstance(key, tuple) and key[0] == X.name and isinstance(value, np.ndarray)
        ]

    names = {"X": X, "f": future, "factor": 3}
    result = cells_client.run("(X.ctypes.data, X.sum() * factor, f['learned'])", names, client=client4, values=True)
    result.check()

    where, sums, learned = zip(*result.values(), strict=True)
    assert [[one] for one in where] == [client4.run(address)[worker] for worker in ranks_of(client4)]
    assert sum(sums) == 3 * sum(range(40))
    assert learned == (7,) * 4


def ranks_of(client):
    """Return the workers' addresses in rank order."""
    workers = client.scheduler_info(n_workers=-1)["workers"]
    return [address for address, _ in sorted(workers.items(), key=lambda item: item[1]["name"])]


@pytest.mark.parametrize("code", ["for i in (1,", "x = = 1", "def f(): await nothing()"])
def test_a_syntax_error_is_told_before_anything_is_sent(client4, code):
    with pytest.raises(InvalidRequest):
        cells_client.run(f"{code}\nsent = True", client=client4)

    assert cells_client.evaluate("'sent' in globals()", client=client4) == [False] * 4


@pytest.mark.parametrize(
    "code", ["print('x' * 99_999_999)", "'x' * 99_999_998", "display({'text/plain': 'x' * 100_000_000}, raw=True)"]
)
def test_output_of_a_hundred_megabytes_is_cut_and_said_so(client4, code):
    result = cells_client.run(code, client=client4)

    assert 1_000_000 < len(shown(result)) < 1_100_000
    assert failures(result) == [
        "ranks 0-3: 98,951,424 more characters of output are not shown (setting workbench.cells.output-limit)"
    ]
    assert is_usable(client4)


@pytest.mark.parametrize("code", ["exit()", "quit()", "import sys; sys.exit(0)"])
def test_a_cell_that_exits_ends_there_and_its_rank_goes_on(client4, code):
    result = cells_client.run(f"{code}\nprint('never')", client=client4)
    result.check()

    assert shown(result) == ""
    assert failures(result) == ["ranks 0-3 left the cell by exit(), which ends no rank"]
    assert is_usable(client4)


@pytest.mark.mpi_flavor
def test_who_waits_for_a_rank_that_has_left_is_told_so(client4):
    result = cells_client.run("if rank == 1: exit()\ncomm.Barrier()", client=client4)

    with raises(CollectiveFailed, ranks=(0, 2, 3)):
        result.check()
    assert is_usable(client4)


@pytest.mark.mpi_flavor
def test_a_rank_that_fails_ends_the_others_in_the_middle_of_a_collective(client4):
    for guilty in range(4):
        result = cells_client.run(
            f"if rank == {guilty}:\n    raise KeyError('bad')\ncomm.allreduce(rank)", client=client4
        )

        told = failures(result)
        assert told[0].startswith(f"rank {guilty} raised:\n")
        assert "raise KeyError" in re.sub(r"\x1b\[[\d;]*m", "", told[0])
        assert told[1].endswith(f": the cell was ended, because rank {guilty} raised KeyError: 'bad'")
        with raises(CollectiveFailed, ranks=(guilty,)):
            result.check()
        assert is_usable(client4)


def test_a_text_that_utf_8_does_not_have_costs_no_rank(client4):
    code = r"""
import workbench
workbench.report(1, name="caf\udce9", loss=1.0)
if rank == 1:
    raise ValueError("cannot read caf\udce9")
"""
    result = cells_client.run(code, client=client4)
    assert "cannot read caf" in failures(result)[0]
    with pytest.raises(CollectiveFailed, match=r"on rank 1: ValueError: cannot read caf\\udce9$"):
        result.check()

    def reads(comm):
        workbench.report(1, name="caf\udce9", loss=1.0)
        raise ValueError("cannot read caf\udce9")

    with raises(ValueError, args=("cannot read caf\udce9",)):
        workbench.run_on_ranks(reads, client=client4)
    # Lost ranks would be missed here.
    assert is_usable(client4)
    assert workbench.run_on_ranks(lambda comm: comm.size, client=client4) == [4] * 4


def test_ranks_that_do_not_wait_for_the_one_that_failed_come_to_their_end(client4):
    result = cells_client.run("assert rank\nprint('done')", client=client4)

    assert [result.done[rank].status for rank in range(4)] == ["error", "ok", "ok", "ok"]
    assert shown(result) == "ranks 1-3: done\n"


FOR_EVER = {
    "in a collective": "if rank: comm.Barrier()\nelse: comm.recv(source=1)",
    "asleep": "import time; time.sleep(600)",
    "in a loop": "while True: pass",
    "in a function of an unlucky name": "def run_code():\n    while True: pass\nrun_code()",
    "in a loop that swallows errors": "while True:\n    try: comm.Barrier()\n    except Exception: pass",
}


@pytest.mark.mpi_flavor
@pytest.mark.parametrize("where", FOR_EVER)
def test_ctrl_c_ends_a_cell_on_all_ranks(client4, where):
    begun = set()

    def interrupt(rank, item):
        if rank not in begun:
            begun.add(rank)
            if len(begun) == 4:
                signal.raise_signal(signal.SIGINT)

    result = cells_client.run(f"print('begun', flush=True)\n{FOR_EVER[where]}", client=client4, show=interrupt)

    assert result.interrupted
    assert {done.status for done in result.done.values()} == {"interrupted"}
    assert failures(result) == ["ranks 0-3: the cell was ended, because the user interrupted the cell"]
    assert is_usable(client4)


def test_ctrl_c_ends_an_evaluation_without_a_value(client4):
    threading.Timer(1, signal.raise_signal, [signal.SIGINT]).start()

    with pytest.raises(KeyboardInterrupt):
        cells_client.evaluate(f"__import__('time').sleep({DEADLINE})", client=client4)
    with raises(CollectiveFailed, ranks=(0,)):
        cells_client.evaluate("exit()", client=client4)
    assert is_usable(client4)


def test_a_cell_whose_objects_take_long_is_given_up_and_does_not_come_between_the_next_ones(client4, tmp_path):
    slow = unpacked.Does(unpacked.sleep, 1.5, tmp_path / "begun")

    def interrupt():
        until("its beginning", (tmp_path / "begun").exists)
        signal.raise_signal(signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        cells_client.run("1", {"slow": slow}, client=client4)
    next_one = cells_client.run("import time; time.sleep(2); comm.Barrier()", client=client4)
    next_one.check()
    assert is_usable(client4)


def test_objects_that_cannot_be_made_on_a_rank_are_told_and_the_ranks_go_on(client4):
    cells_client.run("import math", client=client4).check()
    words = "cannot unpickle 'thing', which the notebook has sent: UnpicklingError: SystemExit: no license"
    with pytest.raises(CollectiveFailed, match=words):
        cells_client.run("1", {"thing": unpacked.Does(unpacked.leave)}, client=client4)
    # no rank still waits for that cell
    until("completion", lambda: cells_client.complete("math.sq", client4) == ["math.sqrt"])
    assert is_usable(client4)


def test_a_cell_that_one_rank_cannot_begin_leaves_the_next_cell_alone(client4):
    for _ in range(2):
        with raises(CollectiveFailed, ranks=(1,)):
            cells_client.run("1", {"thing": unpacked.Does(unpacked.on_rank_1, unpacked.leave)}, client=client4)
        assert cells_client.run("comm.allreduce(1)", client=client4, values=True, timeout=DEADLINE).values() == [4] * 4


PROGRAMS = {
    "raises": ("if rank == 1: raise ValueError('bad input')\ncomm.Barrier()", "", "ValueError: bad input"),
    "exits": ("import sys\nif rank == 1: sys.exit('no input')\ncomm.allreduce(1)", "", "SystemExit: no input"),
    "syntax": ("1 +\n", "", "SyntaxError"),
    "options": ("import argparse\nargparse.ArgumentParser().parse_args()\n", " --size 3", "SystemExit: 2"),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_that_fails_under_run_fails_its_cell_there(client4, tmp_path, program):
    text, options, summary = PROGRAMS[program]
    (tmp_path / "program.py").write_text(text)

    code = f"%run -i {tmp_path / 'program.py'}{options}\nprint('after', comm.allreduce(100))"
    result = cells_client.run(code, client=client4, timeout=DEADLINE)

    with pytest.raises(CollectiveFailed):
        result.check()
    assert result.done[1].status == "error"
    assert result.done[1].summary.startswith(summary)
    assert summary.partition(":")[0] in result.done[1].traceback
    assert "after" not in shown(result)
    assert is_usable(client4)


def test_a_module_that_fails_under_run_fails_its_cell_and_a_display_that_fails_does_not(client4):
    result = cells_client.run("%run -m this_module_is_not_there", client=client4)
    assert {done.status for done in result.done.values()} == {"error"}

    lines = ["class Shown:", "    def _repr_html_(self): raise RuntimeError('no dot')", "Shown()"]
    result = cells_client.run("\n".join(lines), client=client4)
    result.check()


@pytest.mark.mpi_flavor
def test_a_program_for_mpiexec_parses_its_options_finalizes_and_exits(client4, tmp_path):
    lines = [
        "import argparse, sys",
        "parser = argparse.ArgumentParser()",
        "parser.add_argument('-n', type=int, default=3)",
        "def main(comm=None):",
        "    from mpi4py import MPI",
        "    print(parser.parse_args().n * MPI.COMM_WORLD.size)",
        "    MPI.Finalize()",
        "    sys.exit()",
        "if __name__ == '__main__': main()",
    ]
    (tmp_path / "program.py").write_text("\n".join(lines))

    result = cells_client.run(f"%run {tmp_path / 'program.py'} -n 5", client=client4)
    result.check()
    assert shown(result) == "ranks 0-3: 20\n"
    main = runpy.run_path(str(tmp_path / "program.py"))["main"]
    assert run_on_ranks(main, client=client4) == [None] * 4
    assert is_usable(client4)


def test_names_are_found_by_the_client_that_was_given(cluster4):
    with Client(cluster4, set_as_default=False) as client:
        X = place(da.ones(8, chunks=2), client=client)
        pending = client.submit(time.sleep, 0.5)
        assert (
            cells_client.run("X.sum(), f", {"X": X, "f": pending}, client=client, values=True).values()
            == [(2, None)] * 4
        )
        pending.release()
        with pytest.raises(CollectiveFailed):
            cells_client.run("f", {"f": pending}, client=client)


def test_what_cells_write_to_a_block_stays_in_it_when_it_is_spilled_and_deleted_there(client4):
    X = place(np.zeros((8, 2)), client=client4)

    cells_client.run("from support.spmd import spill\nX[0] = 1\nspill()", {"X": X}, client=client4).check()
    wait([client4.submit(len, block, workers=[3], pure=False) for block in blocks(X)])
    cells_client.run("X[1] = 1; spill(); X[1] += 1; del X", client=client4).check()

    assert {len(holders) for holders in client4.who_has(blocks(X)).values()} == {1}
    assert X.compute()[:, 0].tolist() == [1, 2] * 4


def test_buffers_are_compared_in_each_operation_if_the_user_asks_for_this(client4):
    code = "import numpy as np; a = np.ones(1, 'i8' if rank else 'f8'); comm.Scan(a, a.copy())"
    cells_client.run(code, client=client4).check()
    with pytest.raises(CollectiveFailed):
        cells_client.run(code, client=client4, check=True).check()
    cells_client.run(code, client=client4).check()


def test_a_cell_may_be_given_a_time(client4):
    result = cells_client.run(FOR_EVER["in a collective"], client=client4, timeout="500 ms")

    with pytest.raises(CollectiveTimeout):
        result.check()
    assert is_usable(client4)


def test_what_is_no_placed_array_is_refused_with_what_to_do(client4):
    with pytest.raises(PlacementError):
        cells_client.run("1", {"Y": da.ones(8)}, client=client4)
    with pytest.raises(InvalidRequest):
        cells_client.run("1", {"lock": threading.Lock()}, client=client4)


def test_a_large_value_goes_by_broadcast_and_stays_in_the_namespace_alone(client4):
    code = "from support.spmd import held\n(key, _), = held(comm, big)\nkey"
    keys = cells_client.run(code, {"big": np.arange(1_000_000.0)}, client=client4, values=True).values()

    assert len(set(keys)) == 1
    assert keys[0].startswith("broadcast-")
    until("the ranks let go of it", lambda: not any(keys[0] in held for held in client4.has_what().values()))
    assert cells_client.evaluate("big[-1]", client=client4) == [999_999] * 4


def test_a_rank_without_a_block_is_named_and_those_that_have_one(client4):
    X = place(da.arange(8, chunks=2), per="node", client=client4)

    with raises(PlacementError, ranks=(1,)):
        cells_client.run("X", {"X": X}, client=client4)
    assert cells_client.run("X.size", {"X": X}, ranks=[0], client=client4, values=True).values() == [8]


def test_ranks_that_are_not_there_are_refused(client4):
    with raises(InvalidRequest, option="ranks", given="2,9", allowed="ranks 0-3: the cluster has no rank 9"):
        cells_client.run("1", ranks=[2, 9], client=client4)


def test_views_of_ipyparallel_run_on_the_same_ranks_and_in_the_namespace_of_cells(cluster4, client4):
    cells_client.run("mine = 10 * rank", client=client4).check()
    with cluster4.ipyparallel() as engines:
        assert engines.ids == [0, 1, 2, 3]
        view = engines[:]
        assert view.apply_sync(os.getpid) == [rank["pid"] for rank in cluster4.ranks]
        assert view["mine"] == [0, 10, 20, 30]
        view.push({"theirs": 5}, block=True)
        view.execute("import asyncio\nlast = await asyncio.sleep(0, 7)").get(DEADLINE)
        assert view["last"] == [7] * 4
        assert engines.load_balanced_view().map_sync(abs, range(-9, 0)) == list(range(9, 0, -1))
        for end in (
            engines.shutdown,
            view.shutdown,
            partial(engines.shutdown, hub=True),
            partial(engines.send_signal, 2),
        ):
            with pytest.raises(InvalidRequest):
                end(block=True)
        # ipyparallel's own would open a scheduler without TLS on all addresses of this host.
        assert engines.become_dask() is cluster4.get_client()
        assert engines.become_distributed() is cluster4.get_client()
        engines.stop_dask()
    assert cells_client.evaluate("mine + theirs", client=client4) == [5, 15, 25, 35]


def test_an_engine_that_has_ended_starts_again_with_the_next_cell(cluster4, client4):
    cells_client.run("kept = rank", client=client4).check()
    with cluster4.ipyparallel() as engines:
        # The loop of the engine stops in 0.1 s, before or after the answer to this request.
        engines[1].execute("get_ipython().ask_exit()", block=False)
        until("the end of an engine", lambda: engines.ids == [0, 2, 3])
        assert cells_client.evaluate("comm.allreduce(kept)", client=client4) == [6] * 4
        until("the engine that replaces it", lambda: engines.ids == [0, 1, 2, 3])
        assert engines[:].apply_sync(os.getpid) == [rank["pid"] for rank in cluster4.ranks]


def test_the_end_of_the_controller_ends_its_cell_and_the_next_cell_starts_another(cluster4, client4, tmp_path):
    cells_client.run("kept = rank", client=client4).check()
    results = []
    code = f"open({str(tmp_path / 'begun')!r}, 'a').close(); comm.recv(source=rank)"
    cell = threading.Thread(target=lambda: results.append(cells_client.run(code, client=client4)))
    cell.start()
    until("the cell", (tmp_path / "begun").exists)
    controller(cluster4).kill()
    cell.join(DEADLINE)
    with raises(CollectiveFailed, ranks=()):
        results[0].check()

    slow = unpacked.Does(unpacked.sleep, 1.5, tmp_path / "prepares")
    failed = []

    def prepare():
        try:
            cells_client.run("1", {"slow": slow}, client=client4)
        except CollectiveFailed as error:
            failed.append(error.message)

    cell = threading.Thread(target=prepare)
    cell.start()
    until("its beginning", (tmp_path / "prepares").exists)
    controller(cluster4).kill()
    cell.join(DEADLINE)
    (message,) = failed
    assert message.startswith("the cell was canceled before its start, because the controller of the cells has ended")

    result = cells_client.run("print(kept)\ncomm.allreduce(kept)", client=client4, values=True)
    assert result.values() == [6] * 4
    assert [[item.text for item in result.outputs[rank]] for rank in range(4)] == [["0\n"], ["1\n"], ["2\n"], ["3\n"]]
    with cluster4.ipyparallel() as engines:
        assert engines[:].apply_sync(os.getpid) == [rank["pid"] for rank in cluster4.ranks]


def test_values_that_are_too_large_or_cannot_be_sent_stay_where_they_are(client4):
    large = cells_client.run("bytes(65 << 20)", client=client4, values=True)
    with raises(CollectiveFailed, ranks=(0,)):
        large.values()
    with raises(CollectiveFailed, ranks=(0,)):
        cells_client.evaluate("__import__('threading').Lock()", client=client4)


def test_cells_of_two_notebooks_take_turns_from_the_very_first(cluster4):
    results = {}

    def notebook(name):
        with Client(cluster4, set_as_default=False) as client:
            results[name] = [cells_client.evaluate(f"comm.allreduce({name})", client=client) for _ in range(10)]

    threads = [threading.Thread(target=notebook, args=[name]) for name in (1, 10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * DEADLINE)

    assert results == {1: [[4] * 4] * 10, 10: [[40] * 4] * 10}


def test_a_cell_that_waits_for_another_one_says_so(cluster4, client4, tmp_path, monkeypatch):
    begun, release, lines = tmp_path / "begun", tmp_path / "release", []

    def show(line, **_):
        lines.append(line)
        release.touch()

    code = "\n".join(
        [
            "import time; from pathlib import Path",
            f"Path({str(begun)!r}).touch()",
            f"while not Path({str(release)!r}).exists(): time.sleep(0.01)",
        ]
    )
    with Client(cluster4, set_as_default=False) as client, ThreadPoolExecutor() as threads:
        other = threads.submit(cells_client.run, code, client=client)
        until("the cell", begun.exists)
        monkeypatch.setattr(cells_client, "print", show, raising=False)
        with dask.config.set({"workbench.spmd.watchdog": "20 ms"}):
            assert is_usable(client4)
        other.result(DEADLINE).check()

    assert lines[0].startswith("the cell waits for the end of another cell of this notebook")


def test_the_death_of_a_notebook_ends_its_cell(cluster4, client4, tmp_path):
    mark = tmp_path / "begun"
    code = f"open({str(mark)!r}, 'a').close(); comm.recv(source=rank)"
    program = (
        "import sys\nfrom distributed import Client\nfrom workbench import MPICluster\n"
        "from workbench.cells import client as cells_client\n"
        f"cells_client.run({code!r}, client=MPICluster.attach({cluster4.name!r}).get_client())"
    )
    notebook = subprocess.Popen([sys.executable, "-c", program])
    try:
        until("the cell", mark.exists)
    finally:
        notebook.kill()
        notebook.wait()

    assert is_usable(client4)


def say(number):
    """Print in a task."""
    sys.stdout.write("a task\n")
    return number + 1


@contextmanager
def a_cell_that_runs(client, folder):
    """Have a cell run on all ranks meanwhile."""
    begun, over = folder / "begun", folder / "over"
    code = (
        "import pathlib, time\n"
        f"open({str(begun)!r}, 'a').close()\n"
        f"while not pathlib.Path({str(over)!r}).exists(): time.sleep(0.01)"
    )
    thread = threading.Thread(target=cells_client.run, args=[code], kwargs={"client": client})
    thread.start()
    try:
        until("the cell", begun.exists)
        yield
        assert thread.is_alive()
    finally:
        over.touch()
        thread.join()


def test_tasks_flow_while_a_cell_runs_and_print_to_the_log(cluster4, client4, tmp_path):
    with a_cell_that_runs(client4, tmp_path):
        for turn in range(20):
            assert client4.submit(say, turn, pure=False).result(DEADLINE) == turn + 1

    until("what a task has printed", lambda: "a task" in cluster4.logs())


def test_what_threads_and_scripts_of_a_cell_print_and_help_are_shown(client4):
    threads = """
import threading
from concurrent.futures import ThreadPoolExecutor
for target in (lambda: print("of a thread"), lambda: 1 / 0):
    thread = threading.Thread(target=target)
    thread.start()
    thread.join()
with ThreadPoolExecutor(1) as pool:
    pool.submit(print, "of a pool").result()
"""
    text = shown(cells_client.run(threads, ranks=[1], client=client4))
    assert text.count("ZeroDivisionError: division by zero\n") == 1
    assert "rank 1:\nof a thread\nof a pool\n" in text

    assert shown(cells_client.run("%%bash\necho of a script", client=client4)) == "ranks 0-3: of a script\n"
    assert shown(cells_client.run("zip?", client=client4)).startswith("ranks 0-3:\n")
    assert not shown(cells_client.run("1;", client=client4))


def test_a_cell_may_await_and_run_coroutines_and_ctrl_c_ends_a_wait(client4, tmp_path):
    begin = "import asyncio\nasync def doubled():\n    await asyncio.sleep(0)\n    return 2 * rank\n"
    for last in ("await doubled()", "asyncio.run(doubled())"):
        assert cells_client.run(begin + last, values=True, client=client4).values() == [0, 2, 4, 6]
    assert cells_client.evaluate("await doubled()", client=client4) == [0, 2, 4, 6]

    blocks = "import time\nasync def blocked():\n    time.sleep(30)\nawait asyncio.gather(blocked())"
    for waits in ("await asyncio.sleep(100)", "await asyncio.to_thread(__import__('time').sleep, 30)", blocks):
        result = cells_client.run(waits, timeout=0.5, client=client4)
        assert result.timed_out
        assert {each.status for each in result.done.values()} == {"interrupted"}
        assert not shown(result)
    failed = cells_client.run("await asyncio.sleep(0)\n1 / (rank - 2)", client=client4)
    assert failed.failed == [2]
    assert is_usable(client4)


def test_names_of_rank_0_are_completed_unless_a_cell_runs(client4, tmp_path):
    cells_client.run("import math\nmyvalue = 3; myother = 4", client=client4).check()

    # a rank that cannot reply immediately contributes no names
    until("names", lambda: cells_client.complete("my", client4)[-2:] == ["myother", "myvalue"])
    until("names of a module", lambda: "math.sqrt" in cells_client.complete("math.sq", client4))
    with a_cell_that_runs(client4, tmp_path):
        until("none", lambda: cells_client.complete("my", client4) == [])


def controller(cluster):
    """Return the process that listens for engines and notebooks."""
    processes = [process for process in psutil.process_iter() if "workbench.cells.controller" in cmdline(process)]
    (found,) = [process for process in processes if f"/workbench-{cluster.record.id[:8]}" in " ".join(cmdline(process))]
    return found


def cmdline(process):
    try:
        line = process.cmdline()
    except psutil.Error:
        return []
    return [] if any(word.endswith("parent_death.py") for word in line) else line


def test_the_controller_listens_on_one_address_and_answers_nobody_without_its_key(cluster4, client4):
    assert is_usable(client4)
    process = controller(cluster4)
    listening = [each.laddr for each in process.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
    assert len(listening) > 10
    assert {each.ip for each in listening} == {"127.0.0.1"}

    context = zmq.Context()
    try:
        for each in listening:
            with (
                context.socket(zmq.DEALER) as stranger,
                stranger.get_monitor_socket(addr=f"inproc://{each.port}") as monitor,
            ):
                stranger.setsockopt(zmq.LINGER, 0)
                stranger.connect(f"tcp://{each.ip}:{each.port}")
                until("a refusal", lambda monitor=monitor: monitor.poll(0) and refused(monitor))
    finally:
        context.term()


def refused(monitor):
    event = zmq.utils.monitor.recv_monitor_message(monitor)["event"]
    assert event != zmq.EVENT_HANDSHAKE_SUCCEEDED
    return event in {
        zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
        zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL,
        zmq.EVENT_DISCONNECTED,
    }


def test_no_key_is_on_a_command_line_or_in_a_file(cluster4, client4):
    assert is_usable(client4)
    connection, _ = cells_client._links[client4]
    secrets = [connection["key"], connection["curve_serverkey"]]
    process = controller(cluster4)
    folder = process.cmdline()[process.cmdline().index("--folder") + 1]
    told = " ".join(process.cmdline()) + " ".join(process.environ().values()) + cluster4.logs()
    for where, _, files in [*os.walk(folder), *os.walk(ClusterFolder.of(cluster4.record).path)]:
        for name in files:
            with open(os.path.join(where, name), errors="replace") as file:  # noqa: PTH118
                told += file.read()

    assert all(secrets)
    assert not [secret for secret in secrets if secret in told]


def test_a_cell_runs_on_the_ranks_after_a_move_and_no_controller_outlives_its_head():
    with MPICluster(1, name="moves-of-cells", quiet=True) as cluster, Client(cluster) as client:
        here = place(da.arange(4, chunks=4), client=client)
        assert cells_client.evaluate("comm.allreduce(1)", client=client) == [1]
        cluster.scale(2)
        assert cells_client.evaluate("comm.allreduce(1)", client=client) == [2, 2]
        with raises(PlacementError, ranks=(1,)):
            cells_client.run("X", {"X": here}, client=client)
        assert cells_client.run("X.sum()", {"X": here}, ranks=[0], client=client, values=True).values() == [6]

        process = controller(cluster)
        kill(cluster.record.process.pid)
        until("the end of the controller", lambda: gone(process), GONE_WITHIN)


@pytest.mark.mpi_flavor
def test_a_rank_that_dies_in_a_cell_is_named_and_a_restart_helps():
    with MPICluster(3, name="dying-in-cells", quiet=True) as cluster, Client(cluster) as client:
        result = cells_client.run("import os\nif rank == 2: os._exit(1)\ncomm.Barrier()", client=client)
        with pytest.raises(RankLost):
            result.check()
        if cluster.record.mpi.startswith("Open MPI"):
            with raises(RankLost, ranks=(2,)):
                cells_client.run("1", client=client)
            assert cells_client.evaluate("comm.allreduce(1)", ranks=[0, 1], client=client) == [2, 2]
            cluster.restart()

        def is_back():
            try:
                return is_usable(client, 3)
            except (CollectiveFailed, RankLost):  # a world that has ended with its rank is being started
                return False

        until("all ranks", is_back)


def test_a_cluster_that_is_stopped_in_the_middle_of_a_cell_is_named_as_the_reason():
    with MPICluster(1, name="stopped-in-cell", quiet=True) as cluster, Client(cluster) as client:
        cells_client.run("pass", client=client).check()
        process = controller(cluster)

        def stop(rank, item):
            cluster.close()

        with pytest.raises((HeadUnreachable, RankLost, CollectiveFailed)):
            cells_client.run("print('begun', flush=True)\ncomm.recv(source=rank)", client=client, show=stop).check()
        until("the controller to end", lambda: gone(process), GONE_WITHIN)
        until("the client to be closed", lambda: client.status == "closed")
        with pytest.raises(PlacementError):
            cells_client.run("1", client=client)


def test_without_a_cluster_there_is_a_sentence():
    with pytest.raises(PlacementError):
        cells_client.run("1")
