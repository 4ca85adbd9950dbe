"""Who dies when whom is killed: rows of the table of the page Reliability, with real processes and SIGKILL."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client
from support.folders import folders_of
from support.last_word import end_of
from support.processes import DEADLINE, GONE_WITHIN, gone, kill, launcher_of, processes_of, until
from support.raised import raises

from workbench import MPICluster, blocks, map_blocks, place, run_on_ranks
from workbench.deploy import ended, registry, stop
from workbench.errors import ClusterNotFound, HeadUnreachable, MemoryLimitReached, RankLost
from workbench.launch import local, mpi_library
from workbench.launch.mpi_library import has_ulfm


@pytest.fixture(params=[True, False], ids=["forked", "by themselves"])
def template(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether ranks are forked from a template, or import by themselves."""
    import dask

    with dask.config.set({"workbench.template": request.param}):
        yield request.param


@pytest.mark.mpi_flavor
@pytest.mark.usefixtures("template")
def test_the_head_takes_everything_along_and_ranks_that_are_stuck_in_c_code() -> None:
    cluster = MPICluster(2, quiet=True)
    client = Client(cluster, set_as_default=False)
    processes, record = processes_of(cluster), cluster.record
    assert len(processes) >= 4, "head, mpiexec and two ranks"
    stuck = client.submit(_hold_the_interpreter, workers=[1], pure=False)
    until("rank 1 is stuck", lambda: _is_in_c(cluster.ranks[1]["pid"]))
    # A client that connects again in the very moment of the kill fails with a ValueError of Tornado.
    stuck.release()
    client.close(timeout=1)
    kill(record.process.pid)
    until("all processes are gone", lambda: all(map(gone, processes)), GONE_WITHIN)
    with pytest.raises(HeadUnreachable):
        cluster.refresh()
    cluster.close()
    registry.clean()  # on a busy machine the object has noticed the end before `close`, and leaves the record
    assert record.name not in registry.names()
    assert folders_of(record) == []


def _hold_the_interpreter() -> None:
    """Sleep in C without letting go of the interpreter lock: no Python thread of the process runs."""
    Path(f"/proc/{os.getpid()}/comm").write_text("stuck")
    ctypes.PyDLL(None).sleep(300)


def _is_in_c(pid: int) -> bool:
    return any("stuck" in comm.read_text() for comm in Path(f"/proc/{pid}/task").glob("*/comm"))


@pytest.mark.mpi_flavor
def test_after_a_killed_rank_the_others_go_on_and_after_a_killed_mpiexec_their_world_starts_again(
    template: bool,
) -> None:
    with MPICluster(2, quiet=True, memory="400MiB") as cluster, Client(cluster) as client:
        _end_task_by_its_memory(cluster, client)
        victim = cluster.ranks[1]
        others = {rank["pid"] for rank in cluster.ranks} - {victim["pid"]}
        starts, shared = cluster.record.world.starts, _shared_memory(cluster)
        assert shared, "ranks of one node share memory"
        kill(victim["pid"])
        if template:
            ended_with = f"a rank, process {victim['pid']}, ended with signal 9 (SIGKILL)"
            until("the signal is in the log", lambda: ended_with in cluster.logs())
        if has_ulfm(mpi_library.find()):
            until("the loss is seen", lambda: cluster.refresh().state == "degraded")
            assert set(client.run(os.getpid).values()) == others
            lost, _, others_go_on = cluster.record.message.partition("; ")
            # The last known use of memory may be that of the task. The signal is known if the template has not reaped.
            lost = re.sub(r"( with signal 9 \(SIGKILL\))?(, with .* in use)?$", "", lost)
            assert lost == f"rank 1 (pid {victim['pid']} on {victim['host']}) was lost"
            assert others_go_on == "1 of 2 continue"
            cluster.restart()
            assert cluster.refresh().state == "ready"
            _end_rank_by_a_task(cluster, client)
        else:
            until("the world is there again", lambda: _ready_again(cluster, starts + 1))
            assert f"rank 1 (pid {victim['pid']}" in cluster.logs()
            assert len(client.run(os.getpid)) == 2

        starts = cluster.refresh().world.starts
        old = set(client.run(os.getpid).values())
        killed = launcher_of(cluster)
        shared |= _shared_memory(cluster)
        kill(killed)
        until("the world is there again", lambda: _ready_again(cluster, starts + 1))
        new = set(client.run(os.getpid).values())
        assert len(new) == 2
        assert not old & new
        assert "the world was lost: mpiexec ended with signal 9 (SIGKILL)" in cluster.logs()
        assert client.submit(sum, [1, 2]).result(DEADLINE) == 3
    assert not list(Path(tempfile.gettempdir()).glob(f"*.{killed.pid}")), "the session folder of mpiexec"
    until("nothing is left", lambda: not any(path.exists() for path in shared))


def _end_task_by_its_memory(cluster: MPICluster, client: Client) -> None:
    """Have a task use more memory than its rank may; all ranks and their blocks stay."""
    block = client.submit(os.getpid, workers=[1], pure=False)
    pid = block.result(DEADLINE)
    task = client.submit(_fill_memory, workers=[1], pure=False)
    with pytest.raises(MemoryLimitReached) as error:
        task.result(DEADLINE)
    assert "--memory" in str(error.value)
    assert isinstance(error.value, MemoryError)
    assert block.result(DEADLINE) == pid
    assert cluster.refresh().state == "ready"


def _fill_memory() -> None:
    """Reach the threshold but not the limit, and wait for the end there: on a busy machine it may come late."""
    import numpy as np

    from workbench.rank.memory_limit import own_memory

    kept = []
    for _ in range(round(DEADLINE * 1000)):
        if own_memory() < 390 << 20:
            kept.append(np.ones(1 << 17))  # 1 MiB
        time.sleep(0.001)


def _end_rank_by_a_task(cluster: MPICluster, client: Client) -> None:
    """Have a task end its rank; the task does not run on the other rank, which keeps running."""
    lost = client.submit(os._exit, 3, pure=False)
    with pytest.raises(RankLost) as caught:
        lost.result(DEADLINE)
    assert caught.value.ranks in {(0,), (1,)}
    until("the loss is seen", lambda: cluster.refresh().state == "degraded")
    assert len(client.run(os.getpid)) == 1
    assert client.submit(sum, [1, 2]).result(DEADLINE) == 3


@pytest.mark.mpi_flavor
def test_after_a_lost_world_blocks_are_made_again_unless_they_had_no_source_or_code_may_have_changed_them() -> None:
    draws = da.random.RandomState(7).random_sample((600, 2), chunks=(50, 2))
    with MPICluster(2, quiet=True) as cluster, Client(cluster) as client:
        X, read, written, scattered = (place(each) for each in (draws, draws + 1, draws + 2, np.ones((600, 2))))
        shifted = [block.result(DEADLINE) for block in map_blocks(np.negative, X)]
        assert run_on_ranks(_total, read, writes=False) != run_on_ranks(_total, written)
        derived = map_blocks(np.sum, written)
        assert len(client.gather([*derived, *blocks(scattered)])) == 4
        starts = cluster.record.world.starts
        kill(launcher_of(cluster) if has_ulfm(mpi_library.find()) else cluster.ranks[1]["pid"])
        until("the world is there again", lambda: _ready_again(cluster, starts + 1))

        np.testing.assert_array_equal(X.compute(), draws.compute(scheduler="threads"))
        np.testing.assert_array_equal(
            np.concatenate(client.gather(map_blocks(np.negative, X))), np.concatenate(shifted)
        )
        total = draws.sum().compute(scheduler="threads")
        assert run_on_ranks(_total, X, result="root") == pytest.approx(total)
        assert run_on_ranks(_total, read, result="root") == pytest.approx(total + 1200)
        for rank, block in enumerate(blocks(written)):
            with raises(RankLost, ranks=(rank,)):
                block.result(DEADLINE)
        with raises(RankLost, ranks=(0,)):
            derived[0].result(DEADLINE)
        with pytest.raises(RankLost):
            run_on_ranks(_total, scattered)
        with pytest.raises(RankLost):
            run_on_ranks(_total, written)
        assert "made again" in cluster.logs()


def _total(comm: Any, X: Any) -> float:
    return float(comm.allreduce(X.sum()))


def _shared_memory(cluster: MPICluster) -> set[Path]:
    """Return the files that ranks of a cluster share as memory; worlds of other tests have theirs beside them."""
    maps = "".join(Path(f"/proc/{rank['pid']}/maps").read_text() for rank in cluster.ranks)
    mapped = [line.split(maxsplit=5) for line in maps.splitlines() if " rw-s " in line]
    return {Path(path) for *_, path in mapped if Path(path).is_file()}


def _ready_again(cluster: MPICluster, starts: int) -> bool:
    record = cluster.refresh()
    return record.state == "ready" and record.world.starts == starts


def test_a_world_that_is_lost_too_often_is_given_up_with_everything() -> None:
    import dask

    with dask.config.set({"workbench.world.restarts": 0}):
        cluster = MPICluster(1, quiet=True)
    processes, record = processes_of(cluster), cluster.record
    kill(launcher_of(cluster))
    until("all processes are gone", lambda: all(map(gone, processes)), GONE_WITHIN)
    with pytest.raises(ClusterNotFound):
        MPICluster.attach(record.name)
    state, reason = end_of(record)
    assert state == ended.FAILED
    assert "mpiexec ended with signal 9 (SIGKILL), and no more restarts are left" in reason
    cluster.close()
    assert record.name not in registry.names()


def test_a_retired_rank_ends_alone() -> None:
    with MPICluster(2, quiet=True) as cluster, Client(cluster) as client:
        stays, goes = cluster.ranks
        client.retire_workers([goes["address"]])
        until("rank 1 is gone", lambda: _ended(goes["pid"]), GONE_WITHIN)
        until("the loss is seen", lambda: cluster.refresh().state == "degraded")
        assert client.run(os.getpid) == {stays["address"]: stays["pid"]}


def _ended(pid: int) -> bool:
    import psutil

    try:
        return gone(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return True


START = """
import sys
from workbench import MPICluster
cluster = MPICluster(1, name=sys.argv[1], quiet=True)
print("up", flush=True)
input()
"""


def _kernel(name: str) -> subprocess.Popen[Any]:
    kernel = subprocess.Popen(
        [sys.executable, "-c", START, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert kernel.stdout is not None
    assert kernel.stdout.readline() == "up\n"
    return kernel


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_cluster_outlives_its_kernel_and_is_found_again(number: signal.Signals) -> None:
    kernel = _kernel("orphan")
    kernel.send_signal(number)
    kernel.communicate(timeout=DEADLINE)
    assert "orphan" in registry.names()
    assert registry.read("orphan").alive()
    with MPICluster.attach("orphan") as cluster, Client(cluster) as client:
        assert len(client.run(os.getpid)) == 1
        cluster.close(shutdown=True)
    assert "orphan" not in registry.names()


def test_the_record_of_a_killed_head_is_recognized_and_cleaned() -> None:
    cluster = MPICluster(1, name="stale", quiet=True)
    processes, record = processes_of(cluster), cluster.record
    cluster.detach()
    kill(record.process.pid)
    until("all processes are gone", lambda: all(map(gone, processes)), GONE_WITHIN)
    assert registry.read("stale").alive() is False
    with pytest.raises(ClusterNotFound):
        MPICluster.attach("stale")
    assert "stale" not in registry.names()
    state, reason = end_of(record)
    assert state == ended.FAILED
    assert reason.endswith("was killed or crashed")
    with MPICluster(1, name="stale", quiet=True) as again:
        assert again.record.id != record.id


def test_a_head_that_is_stopped_is_told_and_can_be_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    import dask

    monkeypatch.setattr(stop, "_STOP_TIMEOUT_S", 0.5)
    monkeypatch.setattr(local, "_CLOSE", 0.5)
    cluster = MPICluster(1, quiet=True)
    processes = processes_of(cluster)
    os.kill(cluster.record.process.pid, signal.SIGSTOP)
    with dask.config.set({"workbench.connect-timeout": "0.5 s"}):
        with pytest.raises(HeadUnreachable):
            cluster.refresh()
        cluster.close()
    until("all processes are gone", lambda: all(map(gone, processes)), GONE_WITHIN)
    assert cluster.record.name not in registry.names()


def test_scale_to_the_same_number_replaces_a_lost_rank_and_keeps_the_results_of_the_others() -> None:
    with MPICluster(3, quiet=True) as cluster, Client(cluster) as client:
        kept, lost = (client.submit(lambda rank=rank: rank, workers=[rank], pure=False) for rank in (0, 2))
        assert client.gather([kept, lost]) == [0, 2]
        goes = cluster.ranks[2]["pid"]
        kill(goes)
        until("the loss", lambda: cluster.refresh().state == "degraded")
        cluster.scale(3)
        assert cluster.refresh().state == "ready"
        assert run_on_ranks(lambda comm: comm.size, client=client) == [3, 3, 3]
        assert kept.result(DEADLINE) == 0
        with pytest.raises(RankLost):
            lost.result(DEADLINE)
