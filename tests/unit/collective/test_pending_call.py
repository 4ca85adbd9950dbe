"""The future of a call: from its creation to its end."""

from __future__ import annotations

import asyncio
import gc
import weakref
from concurrent.futures import wait
from types import SimpleNamespace

from support.patience import DEADLINE

from workbench.collective.client import PendingCall


class Call(PendingCall):
    """A call that needs no head."""

    async def _run(self):
        return 1


def made():
    client = SimpleNamespace(loop=SimpleNamespace(asyncio_loop=asyncio.get_running_loop()))
    return Call(SimpleNamespace(client=client, name="f"))


async def test_the_future_of_a_call_does_not_keep_the_call_and_its_arguments():
    call = made()
    gc.disable()
    try:
        future = call.start()
        assert await asyncio.wrap_future(future) == 1
        kept = weakref.ref(call)
        del call
        await asyncio.sleep(0)
        assert kept() is None
    finally:
        gc.enable()


async def test_a_wait_for_a_future_that_was_cancelled_before_the_call_began_ends():
    future = made().start()
    future.cancel()

    done, _ = await asyncio.to_thread(wait, [future], DEADLINE)

    assert done == {future}
