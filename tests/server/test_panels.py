"""Processes of dashboards: one for each cluster, shared, and never an orphan."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import stat
import threading
from contextlib import nullcontext, suppress
from types import SimpleNamespace

import pytest
from server.running import panels_of
from support.processes import DEADLINE, gone, kill, line_of, until

from workbench.deploy import registry
from workbench.errors import LaunchError, StartError, StartTimeout
from workbench.host import node_dirs
from workbench.lab import dashboard
from workbench.lab.server import dashboards
from workbench.lab.server.dashboards import DashboardProcesses

PREFIX = "/workbench/dashboard/a/"


async def awaited(what, condition):
    """Wait for a condition, and let the event loop go on."""
    await asyncio.to_thread(until, what, condition)


def sockets(record):
    return sorted(node_dirs.sockets(record.id).glob("*.sock"))


@pytest.fixture
async def new(fake):
    """Return what makes the dashboards of a server, which end with the test."""
    made = []

    def make(**options) -> DashboardProcesses:
        made.append(DashboardProcesses(**options))
        return made[-1]

    yield make
    for some in made:
        await some.close()
    assert panels_of(os.getpid()) == []


async def test_the_start_and_the_end_of_a_dashboard_are_logged_without_its_path(new, cluster, monkeypatch, caplog):
    monkeypatch.setattr(dashboards, "_END", DEADLINE)  # later it is killed
    caplog.set_level("DEBUG", logger="workbench")
    shown = new()
    await shown.socket(cluster("a"), PREFIX)
    (process,) = panels_of(os.getpid())
    await shown.close()

    assert [record.getMessage() for record in caplog.records] == [
        f"started: the dashboard of cluster 'a', process {process.pid}",
        f"ended: the dashboard of cluster 'a', process {process.pid}, exit code 0",
    ]


async def test_all_viewers_of_a_cluster_share_one_dashboard(new, cluster):
    shown, a, b = new(), cluster("a"), cluster("b")

    first, second, other = await asyncio.gather(*(shown.socket(record, PREFIX) for record in (a, a, b)))

    assert first == second != other
    assert stat.S_IMODE(first.stat().st_mode) == 0o600
    assert (len(panels_of(os.getpid(), a)), len(panels_of(os.getpid(), b))) == (1, 1)
    await shown.close()
    assert panels_of(os.getpid()) == []
    assert sockets(a) == sockets(b) == []


async def test_a_dashboard_is_not_told_to_change_pages_in_threads(new, cluster, monkeypatch):
    monkeypatch.setenv("PANEL_NUM_THREADS", "4")
    shown, record = new(), cluster("a")
    await shown.socket(record, PREFIX)

    [process] = panels_of(os.getpid(), record)

    told = process.environ()
    assert "PANEL_NUM_THREADS" not in told
    assert told.items() >= {"JUPYTER_DATA_DIR": os.environ["JUPYTER_DATA_DIR"]}.items()


@pytest.mark.parametrize("module", ["fake", "real"])
async def test_the_path_of_the_pages_is_not_on_a_command_line(new, cluster, module, monkeypatch):
    if module == "real":
        monkeypatch.setattr(dashboards, "MODULE", "workbench.lab.dashboard")
    shown, record = new(), cluster("a")
    starting = asyncio.create_task(shown.socket(record, "/secret/"))
    await awaited("its program", lambda: panels_of(os.getpid(), record))
    [process] = panels_of(os.getpid(), record)

    assert not any("secret" in word for word in line_of(process))
    assert process.environ()[dashboard.PREFIX] == "/secret/"
    # the real one would wait for a head that is not there
    kill(process)
    with suppress(StartError):
        await starting


async def test_a_dashboard_that_nobody_looks_at_ends_and_a_new_viewer_gets_a_new_one(new, cluster):
    shown, record = new(idle=0.2), cluster("a")
    await shown.socket(record, PREFIX)
    [process] = panels_of(os.getpid(), record)

    await awaited("the dashboard ends", lambda: gone(process))
    await awaited("its socket is removed", lambda: not sockets(record))
    assert (await shown.socket(record, PREFIX)).exists()


async def test_a_dashboard_that_somebody_looks_at_goes_on(new, cluster):
    shown, watched, left = new(idle=0.2), cluster("watched"), cluster("left")
    await shown.socket(watched, PREFIX)
    with shown.viewing(watched):
        await shown.socket(left, PREFIX)
        [process], [other] = panels_of(os.getpid(), watched), panels_of(os.getpid(), left)

        await awaited("the other one ends", lambda: gone(other))
        assert not gone(process)
    await awaited("it ends", lambda: gone(process))


@pytest.mark.parametrize("idle", [0.2, 300])
async def test_a_dashboard_ends_when_its_cluster_has_and_leaves_nothing(new, cluster, monkeypatch, idle):
    monkeypatch.setattr(dashboards, "_LOOK", 0.1)
    shown, record = new(idle=idle), cluster("a")
    folder = (await shown.socket(record, PREFIX)).parent
    [process] = panels_of(os.getpid(), record)

    # With the long one nobody looks; with the short one somebody does, to the end.
    with shown.viewing(record) if idle < 1 else nullcontext():
        registry.remove(record)
        await awaited("the dashboard ends", lambda: gone(process))
    await awaited("its folder is removed", lambda: not folder.exists())


class Stuck:
    """A process that waits for a file server that does not answer: not even SIGKILL ends it."""

    pid, returncode, stdin = 0, None, None
    _transport = SimpleNamespace(close=lambda: None)

    def __init__(self):
        self.killed = False

    def terminate(self):
        pass

    def kill(self):
        self.killed = True

    async def wait(self):
        await asyncio.Event().wait()


async def test_a_dashboard_that_cannot_be_killed_does_not_keep_the_server_from_stopping(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(dashboards, "_END", 0.1)
    process = Stuck()
    await dashboards._end(dashboards._Panel(cluster("a"), tmp_path / "panel.sock", process))
    assert process.killed


async def test_a_dashboard_that_was_killed_is_started_again(new, cluster):
    shown, record = new(), cluster("a")
    await shown.socket(record, PREFIX)
    [process] = panels_of(os.getpid(), record)
    kill(process)
    await awaited("it is gone", lambda: shown._panels[record.id].result().process.returncode is not None)

    assert (await shown.socket(record, PREFIX)).exists()
    [again] = panels_of(os.getpid(), record)
    assert again != process


async def test_a_viewer_that_leaves_during_the_start_takes_the_dashboard_from_nobody(new, cluster):
    shown, record = new(), cluster("a")
    leaving, staying = (asyncio.create_task(shown.socket(record, PREFIX)) for _ in range(2))
    await asyncio.sleep(0)
    leaving.cancel()

    assert (await staying).exists()


async def test_who_views_a_dashboard_while_the_next_one_starts_gets_no_error(new, cluster):
    shown, record = new(), cluster("a")
    starting = asyncio.create_task(shown.socket(record, PREFIX))
    await awaited("its process is there", lambda: panels_of(os.getpid(), record))

    with shown.viewing(record):
        assert not starting.done()
    assert (await starting).exists()


async def test_dashboards_that_are_starting_end_too(new, cluster):
    shown, record = new(), cluster("a")
    starting = asyncio.create_task(shown.socket(record, PREFIX))
    await awaited("its process is there", lambda: panels_of(os.getpid(), record))

    await shown.close()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert panels_of(os.getpid()) == []


async def test_dashboards_end_while_a_file_server_does_not_answer(new, cluster, monkeypatch):
    asked, answers = threading.Event(), threading.Event()

    def owns_lease(record):
        asked.set()
        return answers.wait()

    monkeypatch.setattr(dashboards, "owns_lease", owns_lease)
    monkeypatch.setattr(dashboards, "_GLANCE", 0.1)
    shown, record = new(idle=0.1), cluster("a")
    await shown.socket(record, PREFIX)
    try:
        await awaited("it is looked at", asked.is_set)
        await asyncio.wait_for(shown.close(), DEADLINE)
    finally:
        answers.set()

    assert panels_of(os.getpid()) == []


async def test_a_dashboard_that_cannot_be_cleared_up_does_not_keep_the_others(new, cluster, monkeypatch):
    shown, end = new(), dashboards._end
    for name in ("bad", "good"):
        await shown.socket(cluster(name), PREFIX)

    async def fail(panel):
        await end(panel)
        if panel.record.name == "bad":
            raise PermissionError("its socket cannot be removed")

    monkeypatch.setattr(dashboards, "_end", fail)
    await shown.close()

    assert panels_of(os.getpid()) == []


async def test_a_dashboard_starts_although_the_user_has_removed_the_logs(new, cluster):
    shown, record = new(), cluster("a")
    shutil.rmtree(registry.logs_folder())

    await shown.socket(record, PREFIX)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (record.logs, record.logs / "dashboard.log")] == [
        0o700,
        0o600,
    ]


async def test_none_is_started_once_all_have_been_ended(new, cluster):
    shown = new()
    await shown.close()

    with pytest.raises(StartError, match="this server is stopping"):
        await shown.socket(cluster("a"), PREFIX)


async def test_a_dashboard_that_is_never_ready_is_ended_and_told(new, cluster, monkeypatch):
    monkeypatch.setattr(dashboards, "_START", 0.01)
    shown, record = new(), cluster("a")

    with pytest.raises(StartTimeout, match=r"cluster 'a' was not ready after 0 s: .*Its log is .*dashboard\.log"):
        await shown.socket(record, PREFIX)
    assert panels_of(os.getpid()) == []


async def test_a_start_that_fails_is_told_with_its_log_and_tried_again_by_the_next_request(new, cluster):
    shown, record = new(), cluster("broken")
    (record.logs / "dashboard.log").write_text("of a dashboard before\n")

    words = r"has ended immediately: no such thing: the last word of its log\. Its log .*Reload this page to try again"
    for _ in range(2):
        with pytest.raises(StartError, match=words) as failed:
            await shown.socket(record, PREFIX)
        assert str(failed.value).endswith("\n\nthe first \\x1bword of its log\nno such thing: the last word of its log")

    assert (record.logs / "dashboard.log").read_text().count("no such thing") == 2
    assert (await shown.socket(cluster("another"), PREFIX)).exists()


async def test_without_panel_it_is_told_what_to_install(cluster, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)

    with pytest.raises(LaunchError, match=r"not installed here\. Run pip install 'panel>="):
        await DashboardProcesses().socket(cluster("a"), PREFIX)
