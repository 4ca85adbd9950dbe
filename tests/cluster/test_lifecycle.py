"""From start to end: other processes, other clients, other numbers of ranks, and nothing left behind."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import dask
import numpy as np
import psutil
import pytest
from distributed import Client
from support.folders import folders_of
from support.last_word import end_of
from support.patience import FACTOR
from support.processes import DEADLINE, GONE_WITHIN, gone, processes_of, until
from support.raised import raises

from workbench import MPICluster, broadcast, map_blocks, place, run_on_ranks
from workbench.deploy import ended, registry
from workbench.deploy.folder import ClusterFolder, clusters_folder
from workbench.deploy.record import Record
from workbench.errors import ClusterExists, ClusterNotFound, HeadUnreachable, InvalidRequest, StartError
from workbench.session import current

ATTACH = """
import sys
from distributed import Client
from workbench import MPICluster
with MPICluster.attach(sys.argv[1]) as cluster, Client(cluster) as client:
    print(sum(client.gather(client.map(lambda x: x * x, range(5)))))
"""


def _attach_elsewhere(name: str) -> str:
    run = [sys.executable, "-W", "error", "-c", ATTACH, name]
    return subprocess.run(run, capture_output=True, text=True, timeout=DEADLINE, check=True).stdout


def test_close_leaves_no_process_no_record_and_no_socket_but_the_logs() -> None:
    cluster = MPICluster(2, quiet=True)
    processes, record = processes_of(cluster), cluster.record
    cluster.close()
    until("all processes are gone", lambda: all(map(gone, processes)), GONE_WITHIN)
    assert not ClusterFolder.of(record).path.exists()
    assert folders_of(record) == []
    assert end_of(record) == (ended.STOPPED, "the user has closed it")
    assert "rank 1 of 2" in (ClusterFolder.of(record).logs / "rank-1.log").read_text()
    with pytest.raises(ClusterNotFound):
        cluster.script()


def test_another_process_attaches_and_leaves_the_cluster_running(cluster4: MPICluster) -> None:
    assert _attach_elsewhere(cluster4.name).strip() == "30"
    assert cluster4.refresh().state == "ready"


def test_an_attach_leaves_no_thread_and_no_file(cluster4: MPICluster) -> None:
    process = psutil.Process()

    def used() -> tuple[int, int]:
        return process.num_threads(), process.num_fds()

    def attach() -> MPICluster:
        with MPICluster.attach(cluster4.name) as cluster, Client(cluster) as client:
            assert client.submit(abs, -1, pure=False).result(DEADLINE) == 1
        return cluster

    closed = attach()
    before = used()
    for _ in range(3):
        attach()
    until("the threads have ended", lambda: used() <= before)
    for request in (closed.refresh, closed.get_client, partial(closed.broadcast, [1]), closed.get_logs):
        with raises(HeadUnreachable, given=closed.name):
            request()
    closed.close()


def test_requests_of_threads_end_when_another_thread_closes_the_object(cluster4: MPICluster) -> None:
    def request(cluster: MPICluster, begun: threading.Event) -> None:
        while True:
            cluster.refresh()
            begun.set()

    with ThreadPoolExecutor() as pool:
        for _ in range(5):
            cluster, begun = MPICluster.attach(cluster4.name), threading.Event()
            requests = [pool.submit(request, cluster, begun) for _ in range(3)]
            assert begun.wait(DEADLINE)
            cluster.close()
            for each in requests:
                with pytest.raises(HeadUnreachable):
                    each.result(DEADLINE)


def test_two_clients_work_at_once(cluster4: MPICluster) -> None:
    with Client(cluster4) as first, Client(cluster4) as second:
        slow = first.submit(lambda x: x + 1, 1, pure=False)
        assert second.submit(lambda x: x * 10, 2, pure=False).result(DEADLINE) == 20
        assert slow.result(DEADLINE) == 2


def test_two_clusters_run_side_by_side_and_one_ends_in_order_on_sigint(cluster4: MPICluster, client4: Client) -> None:
    loops = _loops()
    other = MPICluster(2, quiet=True)
    with Client(other, set_as_default=False) as client:
        assert len(client.run(os.getpid)) == 2
        assert len(client4.run(os.getpid)) == 4
        assert {cluster4.name, other.name} <= set(registry.names())
        assert other.record.address != cluster4.record.address
    processes, record = processes_of(other), other.record
    left_open = [Client(other, set_as_default=False)]
    os.kill(record.process.pid, signal.SIGINT)
    until("all processes are gone", lambda: all(map(gone, processes)), GONE_WITHIN)
    assert not ClusterFolder.of(record).path.exists()
    assert end_of(record) == (ended.ENDED, "SIGINT was received")
    until("the client is closed, too", lambda: left_open[0].status == "closed")
    left_open.clear()
    until("the thread of the loop has ended", lambda: _ended_loops_are_gone(loops))
    other.close()
    assert cluster4.refresh().state == "ready"


def _ended_loops_are_gone(earlier: set[threading.Thread]) -> bool:
    gc.collect()  # the coroutine that closes the clients refers to them until its end
    return _loops() <= earlier


def _loops() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "IO loop"}


def test_a_second_cluster_of_one_name_is_refused_and_the_first_unharmed(cluster4: MPICluster) -> None:
    with pytest.raises(ClusterExists):
        MPICluster(1, name=cluster4.name, quiet=True)
    assert cluster4.refresh().state == "ready"


async def test_a_cluster_is_used_with_async_with() -> None:
    async with (
        MPICluster(1, asynchronous=True, quiet=True) as cluster,
        Client(cluster, asynchronous=True) as client,
    ):
        assert await client.submit(sum, [1, 2]) == 3
        record = cluster.record
    await asyncio.to_thread(until, "the record is removed", lambda: not ClusterFolder.of(record).path.exists())


def test_a_detached_cluster_goes_on_and_an_attached_one_can_end_it() -> None:
    cluster = MPICluster(1, quiet=True)
    name, processes = cluster.name, processes_of(cluster)
    cluster.detach()
    with MPICluster.attach(name) as again:
        assert again.refresh().state == "ready"
    assert not any(map(gone, processes))
    MPICluster.attach(name).close(shutdown=True)
    until("all processes are gone", lambda: all(map(gone, processes)), GONE_WITHIN)
    with pytest.raises(ClusterNotFound):
        MPICluster.attach(name)


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """While this file exists, `growing` gets no more ranks."""
    return tmp_path_factory.mktemp("broken") / "broken"


@pytest.fixture(scope="module")
def growing(broken: Path) -> Iterator[MPICluster]:
    """A cluster of 1 rank that is scaled: each test scales to 1 again."""
    preload = broken.with_name("preload.py")
    preload.write_text(
        "import os\n\ndef dask_setup(worker):\n"
        f"    if worker.name != 0 and os.path.exists({str(broken)!r}):\n        os.kill(os.getpid(), 9)\n"
    )
    # The head pauses before each further attempt, 50 s in all.
    with dask.config.set({"distributed.worker.preload": [str(preload)], "workbench.world.restarts": 0}):
        cluster = MPICluster(1, quiet=True)
    with cluster:
        yield cluster


def test_scale_moves_results_to_any_number_of_ranks_which_all_take_part_in_calls(growing: MPICluster) -> None:
    cluster, table = growing, np.arange(60.0).reshape(20, 3)
    with Client(cluster) as client:
        X = place(table, client=client)
        sums, future = X.sum(axis=0), client.submit(lambda: 7, workers=[0], pure=False)
        (scattered,), sent = client.scatter([[1, 2]]), broadcast(client, "to all")
        (first,) = (psutil.Process(rank["pid"]) for rank in cluster.ranks)
        for ranks in (3, 2, 4, 1):
            cluster.scale(ranks)
            assert [rank["name"] for rank in cluster.ranks] == list(range(ranks))
            assert sorted(run_on_ranks(lambda comm: (comm.rank, comm.size), client=client)) == [
                (rank, ranks) for rank in range(ranks)
            ]
            assert np.array_equal(X.compute(), table)
            assert np.array_equal(sums.compute(), table.sum(axis=0)), "lazy collections stay valid"
            assert (future.result(DEADLINE), scattered.result(DEADLINE)) == (7, [1, 2])
            assert len(client.who_has([sent])[sent.key]) == ranks, "what was sent to all ranks is on all"
            X = place(X, client=client)
            rows = run_on_ranks(lambda _, X: len(X), X, client=client)
            assert (len(rows), sum(rows)) == (ranks, 20)
        cluster.scale(2)
        X = place(table, client=client)
        for ranks in (5, 2):
            cluster.scale(ranks)
        assert run_on_ranks(lambda _, X: len(X), X, client=client) == [10, 10], "the blocks are where they were"
        cluster.scale(1)
        assert cluster.refresh().state == "ready"
        until("the first rank is gone", lambda: not first.is_running())
        for bad in (0, -1, "two"):
            with raises(InvalidRequest, option="ranks", given=bad):
                cluster.scale(bad)  # type: ignore[arg-type]
        with pytest.raises(NotImplementedError):
            cluster.adapt(minimum=1, maximum=2)


def test_a_move_waits_for_tasks_that_run_and_takes_those_that_wait_to_the_new_ranks(
    growing: MPICluster, tmp_path: Path
) -> None:
    def wait(_: Any, begun: str, path: str) -> int:
        Path(begun).touch()
        while not Path(path).exists():
            time.sleep(0.01)
        return os.getpid()

    with Client(growing) as client, ThreadPoolExecutor(1) as threads:
        X = place(np.arange(4.0), client=client)
        (before,) = {rank["pid"] for rank in growing.ranks}
        begun, end = str(tmp_path / "begun"), str(tmp_path / "end")
        running = map_blocks(wait, X, begun, end)
        until("the first runs", Path(begun).exists)
        waiting = map_blocks(lambda _: os.getpid(), X)
        scaling = threads.submit(growing.scale, 2)
        until("new ranks", lambda: "wait for the end of running" in growing.refresh().message)
        Path(end).touch()
        scaling.result(DEADLINE)
        assert running[0].result(DEADLINE) == before
        assert waiting[0].result(DEADLINE) == growing.ranks[0]["pid"]
    growing.scale(1)


def test_new_ranks_that_do_not_start_leave_the_present_ones_as_they_are(growing: MPICluster, broken: Path) -> None:
    with Client(growing) as client:
        future = client.submit(os.getpid, pure=False)
        future.result(DEADLINE)
        broken.touch()
        with raises(StartError):
            growing.scale(2)
        broken.unlink()
        record = growing.refresh()
        assert (record.state, record.total, record.next) == ("ready", 1, None)
        assert client.submit(os.getpid, pure=False).result(DEADLINE) == future.result(DEADLINE)


async def test_a_move_that_its_client_gives_up_leaves_the_ranks_as_they_are() -> None:
    """For example at Ctrl-C, because a rank does not return."""
    async with MPICluster(1, quiet=True, asynchronous=True) as cluster, Client(cluster, asynchronous=True) as client:
        (pid,) = (await client.run(os.getpid)).values()
        future = client.submit(lambda: 7)
        await future
        os.kill(pid, signal.SIGSTOP)
        other = await MPICluster.attach(cluster.name, asynchronous=True)
        scaling = asyncio.ensure_future(other.scale(2))
        while "wait for the end of running" not in (await cluster.refresh()).message:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        scaling.cancel()
        await other.close()
        while (await cluster.refresh()).next is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        os.kill(pid, signal.SIGCONT)
        assert await client.submit(os.getpid, pure=False) == pid
        assert await future == 7


def test_restart_gives_new_ranks_in_the_same_job_for_cluster_and_client_and_client_shutdown_ends_it() -> None:
    cluster = MPICluster(2, quiet=True)
    with Client(cluster) as client:
        head, first = cluster.record.process, {rank["pid"] for rank in cluster.ranks}
        cluster.restart()
        second = {rank["pid"] for rank in cluster.ranks}
        assert len(second) == 2
        assert not first & second
        with pytest.raises(ValueError, match="Restarting workers requires a nanny"):
            client.restart_workers(list(client.scheduler_info()["workers"])[:1])
        client.restart(timeout=DEADLINE)
        third = set(client.run(os.getpid).values())
        assert len(third) == 2
        assert not second & third
        assert cluster.refresh().process == head
        assert client.submit(sum, [1, 2]).result(DEADLINE) == 3
        processes = processes_of(cluster)
        client.shutdown()
    until("all processes are gone", lambda: all(map(gone, processes)), GONE_WITHIN)
    assert end_of(cluster.record)[0] == ended.STOPPED, "by the client, whether or not it asks the head by the cluster"
    cluster.close()
    assert not ClusterFolder.of(cluster.record).path.exists()


def test_an_idle_cluster_ends_itself_but_neither_while_it_starts_nor_under_a_client(tmp_path: Path) -> None:
    slow = tmp_path / "slow.py"
    # Less than the start and a task take, and time enough to notice that the start is over.
    idle = 5.0 * FACTOR
    slow.write_text(f"import time\n\ndef dask_setup(worker):\n    time.sleep({1.1 * idle})\n")
    with dask.config.set({"distributed.worker.preload": [str(slow)]}):
        cluster = MPICluster(1, idle_timeout=idle, quiet=True)
    record = cluster.record
    assert record.state == "ready"
    with Client(cluster) as client:
        assert client.submit(_sleep, 1.1 * idle).result(DEADLINE) == 1.1 * idle
        assert registry.read(record.name).id == record.id
    until("the idle cluster is gone", lambda: not ClusterFolder.of(record).path.exists(), GONE_WITHIN)
    assert end_of(record) == (ended.ENDED, f"the cluster had no client and no task for {idle:.0f} s (idle-timeout)")
    cluster.close()


def _sleep(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def test_a_head_ends_in_order_on_sigterm_and_gives_its_reason_to_all_that_wait(tmp_path: Path) -> None:
    cluster = MPICluster(1, quiet=True)
    client = Client(cluster, set_as_default=False)
    processes, record = processes_of(cluster), cluster.record
    watch = cluster.periodic_callbacks["cluster-end"]
    cluster.sync(watch.callback)
    watch.stop()  # so that the client still tries to reach the scheduler
    done = client.submit(_sleep, 0.0, pure=False)
    assert done.result(DEADLINE) == 0.0
    begun = tmp_path / "begun"
    task = client.submit(_sleep, 600.0, pure=False)
    with ThreadPoolExecutor() as pool:
        call = pool.submit(run_on_ranks, _wait_in_a_call, begun, client=client)
        result = pool.submit(task.result)
        more = pool.submit(cluster.wait_for_workers, 2)
        until("the call runs", begun.exists)
        os.kill(record.process.pid, signal.SIGTERM)
        why = rf"cluster '{record.name}' has ended \(SIGTERM was received\)\. Its logs are in "
        for waits in (call, result, more):
            with pytest.raises(HeadUnreachable, match=why):
                waits.result(DEADLINE)
    until("all processes are gone", lambda: all(map(gone, processes)), GONE_WITHIN)
    assert not ClusterFolder.of(record).path.exists()
    for request in (cluster.refresh, cluster.get_logs):
        with pytest.raises(HeadUnreachable):
            request()
    until("the client has lost the head", lambda: client.status == "connecting" and done.status != "finished")
    with pytest.raises(HeadUnreachable):
        done.result(DEADLINE)
    late = client.submit(_sleep, 0.0, pure=False)
    client.loop.add_callback(watch.start)
    with pytest.raises(HeadUnreachable):
        late.result(DEADLINE)
    until("the client is closed, too", lambda: client.status == "closed")
    with pytest.raises(HeadUnreachable):
        cluster.get_client()
    cluster.close()


def _wait_in_a_call(comm: Any, begun: Path) -> None:
    begun.touch()
    time.sleep(600)


def test_script_is_what_was_run_whichever_python_asks(cluster4: MPICluster, monkeypatch: pytest.MonkeyPatch) -> None:
    submitted = (ClusterFolder.of(cluster4.record).path / "job.sh").read_text()
    assert f"exec {sys.executable} -P -m workbench.head shared" in submitted
    assert "KEY" not in submitted
    monkeypatch.setattr(sys, "executable", "/another/python")
    assert cluster4.script() == submitted


def test_logs_are_told_by_rank_and_a_wrong_rank_is_named(cluster4: MPICluster) -> None:
    assert cluster4.logs(3).startswith("rank 3 of 4")
    assert "==> world-0 <==" in cluster4.logs()
    with raises(InvalidRequest, option="rank", given=4, allowed=("0", "1", "2", "3")):
        cluster4.logs(4)


def test_a_cluster_shows_itself(cluster4: MPICluster) -> None:
    assert repr(cluster4).startswith("MPICluster('shared', 4 of 4 ranks, ready, tls://127.0.0.1:")
    html = cluster4._repr_html_()
    assert "MPI cluster shared" in html
    assert str(cluster4.ranks[3]["pid"]) in html
    assert cluster4.plan == cluster4.requested == cluster4.observed == set(cluster4.workers) == {0, 1, 2, 3}


def test_dask_s_links_lead_to_the_dashboard_on_the_jupyter_server(cluster4, client4, monkeypatch) -> None:
    monkeypatch.delenv(current.SERVER, raising=False)
    assert cluster4.dashboard_link == client4.dashboard_link == ""
    monkeypatch.setenv(current.SERVER, "4711 /user/me/")
    monkeypatch.setenv("JPY_PARENT_PID", "4711")

    assert cluster4.dashboard_link == client4.dashboard_link == "/user/me/workbench/dashboard/shared/"
    assert 'href="/user/me/workbench/dashboard/shared/"' in client4._repr_html_()


def test_the_live_table_is_one_and_tells_at_last_that_it_is_closed(cluster4: MPICluster) -> None:
    with MPICluster.attach(cluster4.name) as attached:
        shown = attached._widget()
        assert attached._widget() is shown
        assert "ready" in shown.value
    assert "closed" in shown.value
    assert "ready" not in shown.value


def test_ctrl_c_during_the_start_leaves_nothing() -> None:
    code = "from workbench import MPICluster; print('go', flush=True); MPICluster(4, name='interrupted', quiet=True)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as kernel:
        folder = clusters_folder() / "interrupted"
        until("the job is submitted", (folder / "job.sh").exists)
        os.kill(kernel.pid, signal.SIGINT)
        _, errors = kernel.communicate(timeout=DEADLINE)
    assert b"KeyboardInterrupt" in errors
    assert not folder.exists()
    its = ended.last("interrupted")
    assert its is not None
    assert its.state == ended.STOPPED


def test_a_removed_record_ends_the_cluster(cluster4: MPICluster) -> None:
    cluster = MPICluster(1, quiet=True)
    processes = processes_of(cluster)
    shutil.rmtree(ClusterFolder.of(cluster.record).path)
    until("all processes are gone", lambda: all(map(gone, processes)), GONE_WITHIN)
    assert end_of(cluster.record) == (ended.STOPPED, "its record was removed or belongs to another cluster")
    cluster.close()
    assert cluster4.refresh().state == "ready"


def test_a_record_that_belongs_to_another_cluster_ends_this_one() -> None:
    cluster = MPICluster(1, quiet=True)
    processes, record = processes_of(cluster), cluster.record
    other = Record(name=record.name, ranks=1)
    ClusterFolder.of(other).write(other)
    until("all processes are gone", lambda: all(map(gone, processes)), GONE_WITHIN)
    assert registry.read(record.name).id == other.id, "the folder is the other cluster's now"
    cluster.close()
    assert registry.read(record.name).id == other.id
    shutil.rmtree(ClusterFolder.of(record).path)


def test_two_clients_that_ask_for_one_size_at_once_get_new_ranks_once(growing: MPICluster) -> None:
    before = growing.refresh().world
    assert before is not None
    with MPICluster.attach(growing.name, quiet=True) as other, ThreadPoolExecutor(2) as threads:
        for asked in [threads.submit(growing.scale, 2), threads.submit(other.scale, 2)]:
            asked.result(DEADLINE)
        world = growing.refresh().world
        assert world is not None
        assert (world.ranks, world.index - before.index) == (2, 1)
    growing.scale(1)
