"""The calls of a rank, without MPI."""

from __future__ import annotations

import asyncio
import threading
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

from support.patience import DEADLINE

from workbench.collective import protocol, serialize
from workbench.collective.operation import poll_until
from workbench.collective.rank import SpmdCalls
from workbench.collective.rank_call import SpmdCall

NOTHING: Any = None
begun, go_on = threading.Event(), threading.Event()


def wait() -> None:
    begun.set()
    go_on.wait(DEADLINE)


class Slow:
    """An argument whose unpacking waits in C code, which cannot be interrupted."""

    def __reduce__(self):
        return wait, ()


class Thread:
    """The SPMD thread of a rank where each call succeeds, and all communicators can be settled."""

    def submit(self, step: Any, *_: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result({"unpack": {}, "run": {"messages": 0}, "settle": True}[step.__name__])
        return done


async def test_a_call_that_has_succeeded_on_this_rank_alone_does_not_free_its_communicators():
    worker: Any = SimpleNamespace(data={}, handlers={}, stream_handlers={}, periodic_callbacks={})
    communicators: Any = SimpleNamespace(discard=lambda _: None)
    context: Any = SimpleNamespace(spmd_thread=Thread(), rank=0)
    calls = SpmdCalls(worker, context, communicators, NOTHING)
    work: Any = {"name": "f", "contents": b"", "compares": False, "counted": True, "listener": None}
    await calls.reserve(call="2f", work=work, serial=1, ranks=[0, 1], keys=[])
    await calls.go(call="2f", wanted=NOTHING)
    calls.end(call="1f", serial=1, reason="rank 1 failed")
    assert await calls.settle("2f"), "the end of another call"
    calls.end(call="2f", serial=1, reason="rank 1 failed")
    assert not await calls.settle("2f"), "the next call would free communicators on this rank alone"


class Block:
    """A value of the worker."""


async def test_a_call_that_is_ended_while_it_is_unpacked_does_not_keep_its_blocks(monkeypatch):
    monkeypatch.setattr(SpmdCall, "_revoke", lambda *_: None)  # without MPI
    worker: Any = SimpleNamespace(data={"x": Block()}, handlers={}, stream_handlers={})
    block = weakref.ref(worker.data["x"])
    contents = serialize.dumps((print, [Slow(), serialize.Placeholder(0)], {}, None))
    work = {"name": "f", "contents": contents, "compares": False, "counted": True, "listener": None}
    with ThreadPoolExecutor(1) as thread:
        context: Any = SimpleNamespace(spmd_thread=thread)
        SpmdCalls(worker, context, NOTHING, NOTHING)
        reserve = worker.handlers[protocol.RESERVE]
        reserving = asyncio.ensure_future(reserve(call="1f", work=work, serial=1, ranks=[0], keys=["x"]))
        assert await asyncio.to_thread(begun.wait, DEADLINE)
        worker.stream_handlers[protocol.END](call="1f", serial=None, reason="it was called off")
        go_on.set()
        await reserving
        worker.data.clear()
        assert await poll_until(lambda: block() is None, DEADLINE)
