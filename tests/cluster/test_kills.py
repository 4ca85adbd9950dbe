"""Who dies when whom is killed: each row of the table of the architecture, with real processes and SIGKILL."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from distributed import Client
from support.processes import DEADLINE, GONE_WITHIN, gone, kill, launcher_of, processes_of, until

from workbench import MPICluster, ending, registry, scratch
from workbench.errors import ClusterNotFound, HeadUnreachable
from workbench.launch import mpi
from workbench.launch.mpiexec import has_ulfm


@pytest.fixture(params=[True, False], ids=["forked", "by themselves"])
def template(request: pytest.FixtureRequest) -> bool:
    """Whether ranks are forked from a template, or import by themselves."""
    return bool(request.param)


@pytest.mark.mpi_flavour
def test_the_head_takes_everything_along(template: bool) -> None:
    cluster = MPICluster(4, quiet=True, template=template)
    processes, record = processes_of(cluster), cluster.record
    assert len(processes) >= 6, "head, mpiexec and four ranks"
    kill(record.process.pid)
    until("all processes are gone", lambda: all(map(gone, processes)), GONE_WITHIN)
    with pytest.raises(HeadUnreachable, match=r"has ended. Its logs are in"):
        cluster.refresh()
    cluster.close()
    assert record.name not in registry.names()
    assert not list(scratch.sockets("probe").parent.glob(record.id[:8] + "*"))
    scratch.remove("probe")


@pytest.mark.mpi_flavour
def test_the_head_takes_ranks_along_that_are_stuck_in_c_code(template: bool) -> None:
    cluster = MPICluster(2, quiet=True, template=template)
    client = Client(cluster, set_as_default=False)
    processes = processes_of(cluster)
    stuck = client.submit(_hold_the_interpreter, workers=[1], pure=False)
    until("rank 1 is stuck", lambda: _is_in_c(cluster.ranks[1]["pid"]))
    kill(cluster.record.process.pid)
    until("all processes are gone", lambda: all(map(gone, processes)), GONE_WITHIN)
    stuck.release()
    client.close(timeout=1)
    cluster.close()


def _hold_the_interpreter() -> None:
    """Sleep in C without letting go of the interpreter lock: no Python thread of the process runs."""
    Path(f"/proc/{os.getpid()}/comm").write_text("stuck")
    ctypes.PyDLL(None).sleep(300)


def _is_in_c(pid: int) -> bool:
    return any("stuck" in comm.read_text() for comm in Path(f"/proc/{pid}/task").glob("*/comm"))


@pytest.mark.mpi_flavour
def test_a_killed_mpiexec_is_told_in_words_and_its_world_starts_again(template: bool) -> None:
    with MPICluster(2, quiet=True, template=template) as cluster, Client(cluster) as client:
        before = {rank["pid"] for rank in cluster.ranks}
        killed = launcher_of(cluster)
        kill(killed)
        until("the world is there again", lambda: _ready_again(cluster, starts=2))
        after = set(client.run(os.getpid).values())
        assert len(after) == 2
        assert not before & after
        assert "world 0 was lost: mpiexec ended with signal 9 (SIGKILL)" in cluster.logs()
        assert client.submit(sum, [1, 2]).result(DEADLINE) == 3
    assert not list(Path(tempfile.gettempdir()).glob(f"*.{killed.pid}")), "the session folder of mpiexec"


@pytest.mark.mpi_flavour
def test_after_a_killed_rank_the_others_go_on_or_their_world_starts_again(template: bool) -> None:
    before = _leftovers()
    with MPICluster(4, quiet=True, template=template) as cluster, Client(cluster) as client:
        victim = cluster.ranks[2]
        others = {rank["pid"] for rank in cluster.ranks} - {victim["pid"]}
        kill(victim["pid"])
        if has_ulfm(mpi.find()):
            until("the loss is seen", lambda: cluster.refresh().state == "degraded")
            assert set(client.run(os.getpid).values()) == others
            lost = f"rank 2 of world 0 (pid {victim['pid']} on {victim['host']}) is gone; 3 of 4 go on"
            assert cluster.record.message == lost
            cluster.restart()
            assert cluster.refresh().state == "ready"
        else:
            until("the world is there again", lambda: _ready_again(cluster, starts=2))
            assert f"rank 2 of world 0 (pid {victim['pid']}" in cluster.logs()
        assert len(client.run(os.getpid)) == 4
        assert client.submit(sum, [1, 2]).result(DEADLINE) == 3
    until("nothing is left", lambda: not _leftovers() - before)


def _leftovers() -> set[str]:
    """Return the names of what MPIs keep in shared memory and temporary folders, and no process uses.

    Worlds of tests that run at the same time keep theirs.
    """
    folders = [Path("/dev/shm"), Path("/tmp")]  # noqa: S108  (where MPIs put them)
    kinds = ("sm_segment", "vader", "mpich_shm", "ompi", "prte", "hydra")
    kept = {path.name for folder in folders for path in folder.iterdir() if path.name.startswith(kinds)}
    running = {process.name for process in Path("/proc").glob("[0-9]*")}
    mapped = "".join(map(_maps, Path("/proc").glob("[0-9]*")))
    return {name for name in kept if name.rpartition(".")[2] not in running and name not in mapped}


def _maps(process: Path) -> str:
    try:
        return (process / "maps").read_text()
    except OSError:
        return ""  # it has ended, or is another user's


def _ready_again(cluster: MPICluster, starts: int) -> bool:
    record = cluster.refresh()
    return record.state == "ready" and record.worlds[0].starts == starts


def test_a_world_that_is_lost_too_often_is_given_up_with_everything() -> None:
    import dask

    with dask.config.set({"workbench.world.restarts": 0}):
        cluster = MPICluster(1, quiet=True)
    processes, record = processes_of(cluster), cluster.record
    kill(launcher_of(cluster))
    until("all processes are gone", lambda: all(map(gone, processes)), GONE_WITHIN)
    with pytest.raises(ClusterNotFound, match=r"mpiexec ended with signal 9 \(SIGKILL\), for the last time"):
        MPICluster.attach(record.name)
    cluster.close()
    assert record.name not in registry.names()


def test_a_rank_that_a_task_ends_is_one_rank_less(template: bool) -> None:
    if not has_ulfm(mpi.find()):
        pytest.fail("this test is for the environment with Open MPI 5")
    with MPICluster(2, quiet=True, template=template) as cluster, Client(cluster) as client:
        future = client.submit(os._exit, 3, workers=[1], pure=False, retries=0)
        until("the loss is seen", lambda: cluster.refresh().state == "degraded")
        future.cancel()
        assert client.submit(sum, [1, 2], workers=[0]).result(DEADLINE) == 3


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
cluster = MPICluster(2, name=sys.argv[1], quiet=True)
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
        assert len(client.run(os.getpid)) == 2
        cluster.close(shutdown=True)
    assert "orphan" not in registry.names()


def test_the_record_of_a_killed_head_is_recognised_and_cleaned() -> None:
    cluster = MPICluster(1, name="stale", quiet=True)
    processes, record = processes_of(cluster), cluster.record
    cluster.detach()
    kill(record.process.pid)
    until("all processes are gone", lambda: all(map(gone, processes)), GONE_WITHIN)
    assert registry.read("stale").alive() is False
    with pytest.raises(ClusterNotFound, match=r"'stale' has ended.*logs"):
        MPICluster.attach("stale")
    assert "stale" not in registry.names()
    with MPICluster(1, name="stale", quiet=True) as again:
        assert again.record.id != record.id


def test_a_head_that_is_stopped_is_told_and_can_be_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    import dask

    monkeypatch.setattr(ending, "_END", 0.5)
    cluster = MPICluster(1, quiet=True)
    processes = processes_of(cluster)
    os.kill(cluster.record.process.pid, signal.SIGSTOP)
    with dask.config.set({"workbench.connect-timeout": "0.5 s", "workbench.close-timeout": "0.5 s"}):
        with pytest.raises(HeadUnreachable, match="stuck"):
            cluster.refresh()
        cluster.close()
    until("all processes are gone", lambda: all(map(gone, processes)), GONE_WITHIN)
    assert cluster.record.name not in registry.names()


def test_a_world_with_a_rank_that_is_stuck_can_be_removed() -> None:
    with MPICluster(1, quiet=True) as cluster, Client(cluster) as client:
        cluster.scale(2)
        stuck = next(rank for rank in cluster.ranks if rank["world"] == 1)
        result = client.submit(abs, -1, workers=["w1.0"], allow_other_workers=True)
        assert result.result(DEADLINE) == 1
        client.run_on_scheduler(_set_start_timeout, "1 s")
        os.kill(stuck["pid"], signal.SIGSTOP)
        cluster.scale(1)
        assert "world 1 was removed, but did not hand over its results in time" in cluster.refresh().message
        assert _ended(stuck["pid"])
        assert result.result(DEADLINE) == 1


def _set_start_timeout(value: str) -> None:
    import dask

    dask.config.set({"workbench.start-timeout": value})
