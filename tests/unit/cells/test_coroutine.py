"""A cell with ``await`` ends by SIGINT, whatever its tasks and threads do."""

from __future__ import annotations

import asyncio
import signal
import threading
from contextlib import suppress

import pytest
from support.patience import DEADLINE

from workbench.cells import coroutine
from workbench.cells.engine import interruptible


async def waits_for_a_thread(begun, end):
    await asyncio.to_thread(lambda: (begun.set(), end.wait(DEADLINE)))


async def waits_for_a_task_that_blocks(begun, end):
    async def blocks():
        begun.set()
        end.wait(DEADLINE)

    await asyncio.gather(blocks())


async def ignores_a_cancellation(begun, end):
    begun.set()
    while not end.is_set():
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()


async def leaves_a_task_that_ignores_a_cancellation(begun, end):
    asyncio.get_running_loop().leaves = asyncio.create_task(ignores_a_cancellation(begun, end))
    assert await asyncio.to_thread(begun.wait, DEADLINE)


@pytest.fixture
def sigints(monkeypatch):
    """Return two events; from the first one on, SIGINTs arrive in this thread until the second one, or the end."""
    monkeypatch.setattr(coroutine, "_PATIENCE", 0.2)
    begun, end, over = threading.Event(), threading.Event(), threading.Event()
    before, main = signal.getsignal(signal.SIGINT), threading.get_ident()
    interruptible(lambda: not over.is_set())

    def send():
        assert begun.wait(DEADLINE)
        while not over.wait(0.05):
            signal.pthread_kill(main, signal.SIGINT)

    sender = threading.Thread(target=send)
    sender.start()
    yield begun, end
    over.set()
    begun.set()
    end.set()
    sender.join()
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    "cell",
    [
        waits_for_a_thread,
        waits_for_a_task_that_blocks,
        ignores_a_cancellation,
        leaves_a_task_that_ignores_a_cancellation,
    ],
)
def test_sigint_ends_a_cell_that_awaits(sigints, cell):
    # A wait as long as this event would mean that the cell did not end by itself.
    timer = threading.Timer(DEADLINE / 4, sigints[1].set)
    timer.start()
    with suppress(asyncio.CancelledError, KeyboardInterrupt):
        coroutine.run_coroutine(cell(*sigints))
    timer.cancel()
    assert not sigints[1].is_set()
    assert coroutine._task is None
