"""The process that asks heads, as the server keeps it."""

from __future__ import annotations

import asyncio

import psutil
import pytest
from support.processes import gone, until

from workbench.server import pulses
from workbench.server.pulses import Pulses


@pytest.fixture
async def new():
    """Return what makes the pulses of a server."""
    made = []

    def make(**options):
        made.append(Pulses(**options))
        return made[-1]

    yield make
    for each in made:
        await each.close()


async def process():
    """Return the process that asks, as soon as it is there."""

    def found():
        return next((its for its in psutil.Process().children() if pulses.MODULE in its.cmdline()), None)

    await asyncio.to_thread(until, "it is started", found)
    return found()


async def test_it_ends_when_nobody_looks_and_begins_again_when_somebody_does(new):
    messages = asyncio.Queue()
    its = new(idle=0.0)
    its.follow({"none"})

    its.show(messages.put_nowait)
    asking = await process()
    assert (await messages.get())["pulses"] == {}
    its.hide(messages.put_nowait)
    await asyncio.to_thread(until, "it has ended", lambda: gone(asking))

    its.show(messages.put_nowait)
    while not messages.empty():
        messages.get_nowait()
    assert (await messages.get())["type"] == "pulse"


async def test_it_ends_with_the_server(new):
    its = new()
    its.show(lambda _: None)
    asking = await process()

    await its.close()

    assert gone(asking)


async def test_one_that_talks_nonsense_is_started_again(new, monkeypatch, caplog):
    monkeypatch.setattr(pulses, "_AGAIN", 0.0)
    monkeypatch.setattr(pulses, "MODULE", "this")  # a poem
    messages = asyncio.Queue()
    its = new()
    its.show(messages.put_nowait)
    await asyncio.to_thread(until, "that is logged", lambda: "started again" in caplog.text)

    monkeypatch.undo()

    assert (await messages.get())["pulses"] == {}


async def test_one_that_breaks_off_is_started_again(new, monkeypatch):
    monkeypatch.setattr(pulses, "_AGAIN", 0.0)
    messages = asyncio.Queue()
    its = new()
    its.show(messages.put_nowait)
    asking = await process()

    asking.kill()
    await asyncio.to_thread(until, "it has ended", lambda: gone(asking))

    assert (await messages.get())["pulses"] == {}
