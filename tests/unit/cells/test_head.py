"""What the head keeps of cells whose notebooks have gone."""

from __future__ import annotations

import asyncio
import math
from types import SimpleNamespace
from typing import Any

import pytest
from support.patience import DEADLINE
from support.raised import raises
from support.ready import ready_world

from workbench.cells import head as room
from workbench.cells import protocol
from workbench.cells.head import Cells
from workbench.errors import CollectiveFailed, InvalidRequest

NOTHING: Any = None


@pytest.fixture
def cells(monkeypatch):
    """The queue of cells that are ready immediately and do not end by themselves."""
    monkeypatch.setattr(room, "REMEMBER_S", 0)
    monkeypatch.setattr(protocol, "CELL_END_S", 0)
    sent: list[tuple[str, dict[str, Any]]] = []
    unused: list[float] = []

    async def answer(**_):
        return {"answer": unused.pop() if unused else math.inf}

    async def prepare(**_):
        return {"answer": None}

    scheduler: Any = SimpleNamespace(
        stream_handlers={},
        stream_comms={"a": NOTHING, "b": NOTHING},
        workers={"a", "b"},
        worker_send=lambda *each: sent.append(each),
        sent=sent,
        unused=unused,
        rpc=lambda _: SimpleNamespace(**{protocol.UNUSED: answer, protocol.PREPARE: prepare}),
    )
    current: Any = SimpleNamespace(world=ready_world(), members=lambda: {0: "a", 1: "b"})

    async def ready(_):
        return {}

    engines = SimpleNamespace(ready=ready, generation=0, sent_blocks={})
    monkeypatch.setattr(Cells, "engines", lambda *_: engines)
    return Cells(scheduler, current, NOTHING, NOTHING, lambda *_: None)


def begin(cells: Cells, cell: str, client: str, **options: Any) -> Any:
    names = {"big": {"value": b"parcel"}}
    its = cells.begin(
        cell=cell,
        client=client,
        names=names,
        allowed={"limit": 1},
        **{"notebook": "notebook", "origin": None, "ranks": None, **options},
    )
    return asyncio.ensure_future(its)


async def test_cells_of_a_notebook_that_has_gone_are_forgotten_wherever_they_were(cells):
    running = begin(cells, "runs", "gone")
    async with asyncio.timeout(DEADLINE):
        await running
    waiting, last = begin(cells, "waits", "gone"), begin(cells, "last", "here")
    await asyncio.sleep(0)

    cells.remove_client(NOTHING, "gone")

    with pytest.raises(CollectiveFailed):
        await waiting
    async with asyncio.timeout(DEADLINE):
        await last
    cells.remove_client(NOTHING, "here")
    async with asyncio.timeout(DEADLINE):
        while cells.known:  # noqa: ASYNC110  (there is no event for it)
            await asyncio.sleep(0)


@pytest.mark.parametrize(("origin", "name"), [(None, "another cell"), (7, "cell [7]")])
async def test_a_cell_that_has_not_begun_waits_for_another_cell_or_for_the_engines(cells, monkeypatch, origin, name):
    async def delay(cell):
        await asyncio.sleep(0)
        return await cells.handlers[protocol.DELAY](cell=cell)

    engines = asyncio.get_running_loop().create_future()

    async def ready(_):
        await engines

    monkeypatch.setattr(cells.engines(NOTHING), "ready", ready)
    begun = [
        begin(cells, "starts", "here", origin=origin),
        begin(cells, "waits", "there"),
        begin(cells, "other", "there", notebook="other"),
    ]
    await asyncio.sleep(0)

    assert await delay("starts") == "the start of the engines on the ranks"
    assert await delay("waits") == f"the end of {name} of this notebook, which has had the ranks for 0 s"
    assert await delay("other") == f"the end of {name} of another notebook, which has had the ranks for 0 s"
    engines.set_exception(CollectiveFailed("no engines"))
    for cell in begun:
        with raises(CollectiveFailed, message="no engines"):
            await cell
    assert await delay("waits") == ""


async def deleted(cells: Cells, namespace: str) -> None:
    """Wait until both ranks were asked to delete a namespace."""
    forget = {"op": protocol.FORGET, "namespace": namespace}
    async with asyncio.timeout(DEADLINE):
        while [each for _, each in cells.scheduler.sent].count(forget) < 2:  # noqa: ASYNC110  (there is no event for it)
            await asyncio.sleep(0)


async def test_names_of_a_notebook_are_deleted_some_time_after_its_last_client_has_gone(cells, monkeypatch):
    monkeypatch.setattr(room, "_KEEP_NAMES", 0.001)

    async def forgotten():
        await asyncio.sleep(0.01)  # more than _KEEP_NAMES
        return [each for _, each in cells.scheduler.sent if each["op"] == protocol.FORGET]

    for client in ("first", "second"):
        begin(cells, client, client)
        await asyncio.sleep(0)
    cells.remove_client(NOTHING, "first")
    assert await forgotten() == []
    cells.remove_client(NOTHING, "second")
    begin(cells, "third", "third")
    assert await forgotten() == []
    cells.remove_client(NOTHING, "third")
    await deleted(cells, "notebook")


async def test_names_of_a_notebook_without_a_client_stay_as_long_as_a_view_uses_them(cells, monkeypatch):
    monkeypatch.setattr(room, "_KEEP_NAMES", 0.001)
    cells.scheduler.unused += [math.inf, 0.0] * 3
    cells.scheduler.stream_handlers[protocol.NAMED](worker="a", namespace="views")
    await deleted(cells, "views")
    assert cells.scheduler.unused == []


async def test_a_cell_that_is_refused_before_a_rank_is_asked_leaves_the_communicators(cells):
    world = cells.current.world
    before = cells.queue.communicator(world, [0, 1])
    async with asyncio.timeout(DEADLINE):
        with pytest.raises(InvalidRequest):
            await begin(cells, "refused", "here", ranks=[7])
    assert cells.queue.communicator(world, [0, 1]) == before
