"""The record of a cluster that runs, as its head keeps it."""

from __future__ import annotations

import asyncio
import threading

from support.patience import DEADLINE

from workbench.deploy import registry
from workbench.deploy.record import Record
from workbench.head.head import Head


async def test_a_head_whose_disk_is_full_answers_and_writes_its_record_when_there_is_room(monkeypatch):
    written = asyncio.Queue()
    full = [True]

    def update(record):
        if full[0]:
            raise OSError(122, "Disk quota exceeded")
        loop.call_soon_threadsafe(written.put_nowait, record)

    monkeypatch.setattr(registry, "update", update)
    loop, head = asyncio.get_running_loop(), object.__new__(Head)
    head.record = Record(name="a", ranks=2, state="ready", message="a rank has come")
    head._saving, head._changed = threading.Lock(), asyncio.Event()
    head._changed.set()

    assert (await head._rpc_status())["message"] == "a rank has come"
    full[0] = False
    writing = asyncio.ensure_future(head._write_record())
    async with asyncio.timeout(DEADLINE):
        assert (await written.get()).message == "a rank has come"
    writing.cancel()
