"""The job of a cluster ends soon: no new work is accepted, running work may end, and then nothing is left."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import dask
import pytest
from distributed import Client, Event, Scheduler, Worker
from support.last_word import end_of
from support.processes import DEADLINE, gone, processes_of, until

from workbench import MPICluster
from workbench.deploy import ended, registry
from workbench.deploy.folder import ClusterFolder
from workbench.deploy.record import Record
from workbench.deploy.start import ClusterStart
from workbench.errors import WorkbenchError
from workbench.head.walltime import LAST, WARNINGS
from workbench.launch.interface import Resources

SIGNALLED = r"accepts no more work: the scheduler has requested the end of the job \(SIGUSR1\).*--walltime"


def _run(started: Path, name: str) -> str:
    """Report that the task has begun, and run until the event of this name is set."""
    (started / name).touch()
    Event(name).wait(DEADLINE)
    return name


def _status(dask_worker: Worker) -> str:
    return dask_worker.status.name


def _cluster_with_walltime(grace: float) -> MPICluster:
    """Start a cluster of 1 rank whose job has an end, although it runs on this host."""
    now = time.time()
    resources = Resources(walltime=3600)
    with dask.config.set({"workbench.walltime-grace": grace}):
        job = ClusterStart(
            Record(name=registry.free_name(), ranks=1, resources=resources, deadline=now + DEADLINE), renamable=True
        )
        job.submit()
    until("the cluster is ready", lambda: job.poll().state == "ready")
    return MPICluster.attach(job.record.name, quiet=True)


def _end_in(seconds: float, dask_scheduler: Scheduler) -> None:
    """Have the head learn that the job ends so soon; a start takes longer on a busy machine."""
    walltime = dask_scheduler.handlers["workbench_status"].__self__.walltime
    walltime._learn(time.time() + seconds)
    walltime._learn = lambda _: None  # of the next query


def _notices(client: Client) -> list[str]:
    """Return a list that the kinds of notices of the cluster will come to."""
    heard: list[str] = []
    client.subscribe_topic("workbench", lambda event: heard.append(event[1]["kind"]) if event[1]["kind"] else None)
    return heard


def _signal(cluster: MPICluster) -> None:
    os.kill(cluster.record.process.pid, signal.SIGUSR1)


def test_after_the_signal_running_tasks_end_and_no_others_begin(tmp_path: Path) -> None:
    cluster = MPICluster(2, quiet=True)
    processes, record = processes_of(cluster), cluster.record
    with Client(cluster) as client:
        heard = _notices(client)
        running = client.submit(_run, tmp_path, "running", workers=[0])
        waiting = [client.submit(_run, tmp_path, f"waiting-{n}", workers=[0]) for n in range(3)]
        dependent = client.submit(len, running)
        until("a task runs", (tmp_path / "running").exists)
        done = client.submit(sum, [1, 2], workers=[1])
        assert done.result(DEADLINE) == 3

        _signal(cluster)
        until("a notice comes", lambda: heard)
        assert heard[0] == "drain"
        with Client(cluster, set_as_default=False) as other:
            assert other.submit(sum, [1, 2], workers=[1]).result(DEADLINE) == 3, "it was there already"
        for ask in (
            lambda: client.submit(_run, tmp_path, "late").result(DEADLINE),
            lambda: client.gather(client.map(_run, [tmp_path] * 100, [f"late-{n}" for n in range(100)])),
            lambda: cluster.scale(4),
            cluster.restart,
            lambda: cluster.broadcast(b"block"),
            lambda: client.scatter([1]),
        ):
            with pytest.raises(WorkbenchError, match=SIGNALLED):
                ask()
        until("the ranks know it", lambda: set(client.run(_status).values()) == {"paused"})

        Event("running", client=client).set()
        assert running.result(DEADLINE) == "running"
        until("nothing is left", lambda: all(map(gone, processes)))
        assert "finished" not in {future.status for future in (*waiting, dependent)}
        assert [path.name for path in tmp_path.iterdir()] == ["running"]
    assert not ClusterFolder.of(record).path.exists()
    assert (
        "ending the cluster: the scheduler has requested the end of the job (SIGUSR1)"
        in (ClusterFolder.of(record).logs / "head.log").read_text()
    )
    cluster.close()


def test_a_task_that_does_not_end_is_not_waited_for_longer_than_the_grace(tmp_path: Path) -> None:
    with dask.config.set({"workbench.walltime-grace": "16 s"}):
        cluster = MPICluster(2, quiet=True)
    processes, record = processes_of(cluster), cluster.record
    with Client(cluster) as client:
        endless = client.submit(_run, tmp_path, "endless")
        until("a task runs", (tmp_path / "endless").exists)
        _signal(cluster)
        _signal(cluster)
        until("nothing is left", lambda: all(map(gone, processes)))
        assert endless.status != "finished"
    assert not ClusterFolder.of(record).path.exists()
    cluster.close()


def test_a_cluster_ends_in_order_before_its_walltime_is_up() -> None:
    grace = 3 * LAST
    cluster = _cluster_with_walltime(grace)
    processes, record = processes_of(cluster), cluster.record
    assert time.time() < record.ends <= time.time() + 3600
    with Client(cluster) as client:
        client.run_on_scheduler(_end_in, grace + 1)
        ends = time.time() + grace
    until("nothing is left", lambda: all(map(gone, processes)))
    assert time.time() < ends
    log = (ClusterFolder.of(record).logs / "head.log").read_text()
    assert " left, the job ends at" in log
    assert end_of(record) == (ended.ENDED, "its walltime is up")
    assert not ClusterFolder.of(record).path.exists()
    cluster.close()


def test_a_warning_comes_to_clients_a_minute_before_the_end() -> None:
    cluster = _cluster_with_walltime(LAST)
    with Client(cluster) as client:

        def told() -> list[str]:
            return [event["message"] for _, event in client.get_events("workbench") if event["kind"] == "walltime"]

        client.run_on_scheduler(_end_in, WARNINGS[-1] + 1)
        until("a warning after that of the new end", lambda: len(told()) > 1)
        assert re.match(r"walltime: (1 minute|5\d s) left, the job ends at ", told()[1])
        assert cluster.refresh().message == told()[1]  # type: ignore[union-attr]
    cluster.close(shutdown=True)
