"""The observer: one process for the dashboards of all clusters, which is never an orphan."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import stat
import threading
from contextlib import asynccontextmanager, nullcontext, suppress
from pathlib import Path

import pytest
from server import fake_observer
from server.running import observers_of
from support.processes import DEADLINE, gone, kill, line_of, until
from support.raised import raises
from tornado.websocket import websocket_connect

from workbench.deploy.folder import ClusterFolder
from workbench.errors import HeadUnreachable, StartError
from workbench.host import node_dirs
from workbench.lab import observer as process_module
from workbench.lab.observer import Dashboards
from workbench.lab.server import observer
from workbench.lab.server.observer import Observer, SocketResolver

PREFIX = "/path-of-pages/workbench/dashboard/a/"


async def awaited(what, condition):
    """Wait for a condition, and let the event loop run."""
    await asyncio.to_thread(until, what, condition)


@pytest.fixture
async def new(fake):
    """Return what makes the observer of a server, which ends with the test."""
    made = []

    def make(**options) -> Observer:
        made.append(Observer(**options))
        return made[-1]

    yield make
    for each in made:
        await each.close()
    assert observers_of(os.getpid()) == []


async def shown(its, record):
    """Return the socket of the dashboard of a cluster."""
    sockets = await its.ask("dashboard", DEADLINE, name=record.name, key=record.id, prefix=PREFIX)
    return Path(sockets["dashboard"])


async def shown_again(its, record):
    """Return the socket as a user who reloads the page until the next process answers."""
    async with asyncio.timeout(DEADLINE):
        while True:
            with suppress(StartError):
                return await shown(its, record)


async def test_all_viewers_of_all_clusters_share_one_process_whose_sockets_only_the_user_can_open(new, cluster):
    its, a, b = new(), cluster("a"), cluster("b")

    first, second, other = await asyncio.gather(*(shown(its, record) for record in (a, a, b)))

    assert first == second != other
    [process] = observers_of(os.getpid())
    # both kinds of pages of two clusters, and requests
    assert [stat.S_IMODE(socket.stat().st_mode) for socket in first.parent.iterdir()] == [0o600] * 5
    assert stat.S_IMODE(first.parent.stat().st_mode) == 0o700
    # The path of the pages may be secret.
    assert "path-of-pages" not in " ".join([*line_of(process), *process.environ().values()])
    await its.close()
    assert not first.parent.exists()


async def test_a_dashboard_is_not_told_to_change_pages_in_threads(monkeypatch, tmp_path):
    monkeypatch.setenv("PANEL_NUM_THREADS", "4")
    monkeypatch.setattr(process_module, "_observe", lambda *_: asyncio.sleep(0))

    await asyncio.to_thread(process_module.main, [str(tmp_path / "folder" / "observer.sock"), "1"])

    assert "PANEL_NUM_THREADS" not in os.environ


async def test_its_start_and_its_end_are_logged_without_the_path_of_pages(new, cluster, monkeypatch, caplog):
    monkeypatch.setattr(observer, "_END", DEADLINE)  # later it is killed
    caplog.set_level("DEBUG", logger="workbench")
    its = new()
    await shown(its, cluster("a"))
    [process] = observers_of(os.getpid())
    await its.close()

    assert [record.getMessage() for record in caplog.records] == [
        f"started: the process that observes clusters, process {process.pid}",
        f"ended: the process that observes clusters, process {process.pid}, exit code 0",
    ]


async def test_it_ends_without_viewers_and_the_next_request_starts_it_again(new, cluster, caplog):
    its, record = new(idle=0.2), cluster("a")
    socket = await shown(its, record)
    [process] = observers_of(os.getpid())

    await awaited("it ends", lambda: gone(process))
    await awaited("its folder is removed", lambda: not socket.parent.exists())
    assert (await shown_again(its, record)).exists()
    assert caplog.text == "", "an end without viewers is no failure"


async def test_one_that_was_killed_is_told_and_started_again(new, cluster, caplog):
    its, record = new(), cluster("a")
    socket = await shown(its, record)
    [process] = observers_of(os.getpid())
    kill(process)
    await awaited("that is logged", lambda: "has ended (exit code -9)" in caplog.text)

    assert (await shown_again(its, record)).exists()
    assert not socket.parent.exists()
    [again] = observers_of(os.getpid())
    assert again != process


async def test_after_a_logout_that_has_removed_its_sockets_another_one_is_started(new, cluster):
    its, record = new(), cluster("a")
    shutil.rmtree((await shown(its, record)).parent)

    assert (await shown_again(its, record)).exists()


async def test_a_dashboard_that_takes_the_process_with_it_is_told_by_its_last_word(new, cluster, caplog):
    its = new()

    with pytest.raises(StartError):
        await shown(its, cluster("crash"))

    await awaited("its end is logged", lambda: "has ended (exit code 1): no such thing: the last word" in caplog.text)
    assert r"the first \x1bword of its log" in caplog.text
    assert (await shown_again(its, cluster("another"))).exists()


async def test_one_that_cannot_run_is_told_with_its_last_word_and_tried_again(new, cluster, monkeypatch):
    right, record = observer.MODULE, cluster("a")
    its = new()
    monkeypatch.setattr(observer, "MODULE", "no_such_module")
    for _ in range(2):
        with pytest.raises(StartError, match=r"has ended \(exit code 1\): .*No module named no_such_module"):
            await shown(its, record)

    monkeypatch.setattr(observer, "MODULE", right)
    assert (await shown(its, record)).exists()


async def test_a_head_that_does_not_answer_fails_its_own_dashboard_alone_and_delays_no_other(new, cluster):
    its, slow, broken = new(), cluster("slow"), cluster("broken")
    waiting = asyncio.create_task(its.ask("dashboard", DEADLINE, name="slow", key=slow.id, prefix=PREFIX))

    for _ in range(2):
        with raises(HeadUnreachable, message="no such thing: the first word\x1b"):
            await shown(its, broken)
    assert (await shown(its, cluster("good"))).exists()
    with pytest.raises(StartError):
        await its.ask("dashboard", 0.1, name="slow", key=slow.id, prefix=PREFIX)
    assert not waiting.done()
    waiting.cancel()


async def test_a_viewer_that_leaves_during_the_start_takes_the_dashboard_from_nobody(new, cluster):
    its, record = new(), cluster("a")
    leaving, staying = (asyncio.create_task(shown(its, record)) for _ in range(2))
    await asyncio.sleep(0)
    leaving.cancel()

    assert (await staying).exists()


async def test_one_that_is_starting_ends_too_and_none_is_started_later(new, cluster):
    its, record = new(), cluster("a")
    starting = asyncio.create_task(shown(its, record))
    await awaited("its process is there", lambda: observers_of(os.getpid()))

    await its.close()
    for asking in (starting, shown(its, record)):
        with pytest.raises(StartError, match="this server is stopping"):
            await asking
    assert observers_of(os.getpid()) == []


async def test_one_that_does_not_react_does_not_keep_the_server_from_stopping(new, cluster, monkeypatch):
    monkeypatch.setattr(observer, "_END", 0.1)
    its = new()
    await shown(its, cluster("a"))
    [process] = observers_of(os.getpid())
    process.send_signal(signal.SIGSTOP)

    await asyncio.wait_for(its.close(), DEADLINE)

    assert gone(process)


# -- in the process ------------------------------------------------------------------------------------------------


@pytest.fixture
async def dashboards(monkeypatch, cluster):
    """Return what makes the dashboards of an observer, in a folder for sockets."""
    monkeypatch.setattr(process_module, "pages_of", fake_observer.pages_of)
    folder, made = node_dirs.sockets("observer-tests"), []

    def make(idle) -> Dashboards:
        made.append(Dashboards(folder, idle))
        return made[-1]

    yield make
    for each in made:
        await each.close()
    assert list(folder.iterdir()) == []
    node_dirs.remove("observer-tests")


@asynccontextmanager
async def viewed(socket):
    """Give a viewer of a dashboard."""
    page = await websocket_connect(f"ws://localhost{PREFIX}ws", resolver=SocketResolver(path=socket))
    await page.read_message()
    try:
        yield
    finally:
        page.close()
        await page.read_message()


async def opened(its, record):
    return Path((await its.sockets(record.name, record.id, PREFIX))["dashboard"])


async def test_a_dashboard_that_nobody_looks_at_ends_and_one_that_somebody_looks_at_goes_on(dashboards, cluster):
    its, record, other = dashboards(idle=0.2), cluster("watched"), cluster("left")
    watched = await opened(its, record)
    async with viewed(watched):
        left = await opened(its, other)
        await awaited("the other one ends", lambda: not left.exists())
        assert await opened(its, record) == watched
    await awaited("it ends", lambda: not its.are_open)

    assert await opened(its, record) != watched


@pytest.mark.parametrize("idle", [0.2, 300])
async def test_a_dashboard_ends_when_its_cluster_has_and_leaves_the_others(dashboards, cluster, monkeypatch, idle):
    monkeypatch.setattr(process_module, "_LOOK", 0.1)
    its, record, other = dashboards(idle=idle), cluster("a"), cluster("b")
    socket, stays = await opened(its, record), await opened(its, other)

    # With the long one there is no viewer; with the short one there is a viewer, to the end.
    async with viewed(stays), viewed(socket) if idle < 1 else nullcontext():
        ClusterFolder.of(record).remove()
        await awaited("it ends", lambda: not socket.exists())
        assert stays.exists()


async def test_a_file_server_that_does_not_answer_is_no_end_of_a_cluster(dashboards, cluster, monkeypatch):
    asked, answers = threading.Event(), threading.Event()

    def owns_lease(record):
        asked.set()
        return answers.wait()

    monkeypatch.setattr(ClusterFolder, "owns_lease", owns_lease)
    monkeypatch.setattr(process_module, "_GLANCE", 0.1)
    monkeypatch.setattr(process_module, "_LOOK", 0.1)
    its, record = dashboards(idle=300), cluster("a")
    first = await opened(its, record)
    try:
        await awaited("it is looked at", asked.is_set)
        assert await opened(its, record) == first
    finally:
        answers.set()
