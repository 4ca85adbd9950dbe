"""What is known of clusters, while it is looked at and while it cannot be."""

from __future__ import annotations

import asyncio
import threading

import pytest
from server.unreadable import unreadable
from support.processes import DEADLINE, kill

from workbench.deploy import ended
from workbench.deploy.folder import ClusterFolder
from workbench.lab.server import state
from workbench.lab.server.observer import Observer
from workbench.lab.server.state import Heartbeats, StateFeed
from workbench.lab.server.survey import FilesystemTimeout, RegistryScanner

pytestmark = pytest.mark.usefixtures("own_registry")


class Slow(RegistryScanner):
    """Has read when it is `reading`, and says what, or fails, when it `answers`."""

    def __init__(self):
        super().__init__()
        self.looks, self.failure = 0, None
        self.reading, self.answers = threading.Event(), threading.Event()

    def scan(self):
        seen = super().scan()
        self.looks += 1
        self.reading.set()
        self.answers.wait(DEADLINE)
        if self.failure:
            raise self.failure
        return seen


@pytest.fixture
async def slow(monkeypatch):
    """Return the survey of the boards that are made now."""
    its = Slow()
    monkeypatch.setattr(state, "RegistryScanner", lambda: its)
    yield its
    its.answers.set()


async def test_all_who_ask_while_it_is_looked_share_the_next_look_which_none_of_them_ends(slow, cluster):
    its = StateFeed(Observer())
    first = asyncio.create_task(its.refresh())
    assert await asyncio.to_thread(slow.reading.wait, DEADLINE)
    cluster("new")

    asking = [asyncio.create_task(its.refresh()) for _ in range(20)]
    await asyncio.sleep(0)
    leaving = asking.pop()
    leaving.cancel()
    await asyncio.wait({leaving})
    slow.answers.set()

    assert set((await first).clusters) == set()
    assert {tuple(state.clusters) for state in await asyncio.gather(*asking)} == {("new",)}
    assert slow.looks == 2


async def test_all_who_ask_while_files_hang_hear_of_it_at_once_and_who_asks_later_when_it_is_over(slow, cluster):
    cluster("there")
    its = StateFeed(Observer())
    first = asyncio.create_task(its.refresh())
    assert await asyncio.to_thread(slow.reading.wait, DEADLINE)

    asking = [first, *(asyncio.create_task(its.refresh()) for _ in range(20))]
    await asyncio.sleep(0)
    slow.failure = FilesystemTimeout("they hang")
    slow.answers.set()

    assert {str(told) for told in await asyncio.gather(*asking, return_exceptions=True)} == {"they hang"}
    assert slow.looks == 1
    slow.failure = None
    assert set((await its.refresh()).clusters) == {"there"}


@pytest.mark.usefixtures("subcommands")
async def test_while_files_hang_what_is_being_done_is_told_as_it_is_now(slow, cluster):
    record = cluster("busy")
    its = StateFeed(Observer())
    slow.answers.set()
    await its.refresh()
    slow.answers.clear()
    slow.reading.clear()
    hanging = asyncio.create_task(its.refresh())
    assert await asyncio.to_thread(slow.reading.wait, DEADLINE)

    its.changes.begin(record, "scale", ["4"])
    slow.failure = FilesystemTimeout("they hang")
    slow.answers.set()
    with pytest.raises(FilesystemTimeout):
        await hanging

    assert its.known.clusters["busy"]["busy"] == "scaling"
    await its.close()


async def test_while_the_registry_cannot_be_read_what_was_seen_last_is_told_with_the_reason(subcommands, cluster):
    record = cluster("there")
    its = StateFeed(Observer())
    its.changes.begin(record, "scale", ["4"])
    [subcommand] = subcommands
    kill(subcommand.pid)
    while its.changes.is_busy:  # noqa: ASYNC110  (there is no event for it)
        await asyncio.sleep(0.01)
    before = await its.refresh()

    with unreadable():
        for _ in range(2):
            meanwhile = await its.refresh()
    after = await its.refresh()

    assert before.clusters["there"]["error"]
    assert before.clusters == meanwhile.clusters == after.clusters
    [trouble] = meanwhile.broken
    assert trouble["name"] == ""
    assert "must be a folder that you own" in trouble["error"]
    assert before.broken == after.broken == []


async def test_of_a_registry_that_could_never_be_read_the_reason_is_told_and_no_cluster(cluster):
    cluster("hidden")
    with unreadable():
        state = await StateFeed(Observer()).refresh()

    assert (state.clusters, [its["name"] for its in state.broken]) == ({}, [""])


async def test_browsers_are_told_of_an_end_once(cluster):
    record = cluster("was")
    its = StateFeed(Observer())
    before = await its.refresh()
    ClusterFolder.of(record).note(record, ended.FAILED, "rank 1 died")
    ClusterFolder.of(record).remove()

    state = await its.refresh()

    assert before.whole()["ended"] == []
    (told,) = state.whole()["ended"]
    assert (told["id"], told["reason"]) == (record.id, "rank 1 died")
    change = state.since(before)
    assert (change["gone"], change["ended"]) == (["was"], [told])
    cluster("new")
    assert "ended" not in (await its.refresh()).since(state)


class Seen(Heartbeats):
    """Asks no head."""

    async def _run(self):
        return


@pytest.fixture
async def looks(monkeypatch):
    """Return a board that scans seldom without a viewer, and a queue of its scans."""
    looks: asyncio.Queue[None] = asyncio.Queue()
    monkeypatch.setattr(state, "Heartbeats", Seen)
    its = StateFeed(Observer(), 0.01, 1000.0)
    look = its.refresh

    async def counted():
        try:
            return await look()
        finally:
            looks.put_nowait(None)

    its.refresh = counted
    with its.watching():
        await asyncio.wait_for(looks.get(), DEADLINE)
        yield its, looks
    await its.close()


async def test_the_registry_is_looked_at_often_only_while_somebody_sees_it(looks):
    its, seen = looks

    def viewer(message):
        pass

    await asyncio.sleep(0.2)
    assert seen.empty()
    its.show(viewer)
    for _ in range(5):
        await asyncio.wait_for(seen.get(), DEADLINE)
    its.hide(viewer)
    while not seen.empty():
        seen.get_nowait()
    await asyncio.sleep(0.2)
    assert seen.qsize() <= 1, "the one that was due"


@pytest.mark.usefixtures("subcommands")
async def test_the_registry_is_looked_at_often_while_something_is_done_to_a_cluster(looks, cluster):
    its, seen = looks

    its.changes.begin(cluster("scaled"), "scale", ["4"])

    for _ in range(5):
        await asyncio.wait_for(seen.get(), DEADLINE)


async def test_who_watches_the_clusters_ends_with_the_last_browser_also_in_the_moment_of_a_change(monkeypatch):
    monkeypatch.setattr(state, "Heartbeats", Seen)
    its, others = StateFeed(Observer()), asyncio.all_tasks()
    with its.watching():
        await its.refresh()
        for _ in range(10):
            await asyncio.sleep(0)
        [watcher] = asyncio.all_tasks() - others
        its.show(print)

    await asyncio.wait({watcher}, timeout=DEADLINE)
    assert watcher.cancelled()
