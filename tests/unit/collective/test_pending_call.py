"""The future of a call: from its creation to its end."""

from __future__ import annotations

import asyncio
import gc
import inspect
import io
import sys
import threading
import weakref
from concurrent.futures import wait
from types import SimpleNamespace

from support.patience import DEADLINE
from support.raised import raises

from workbench.collective.client import PendingCall, show_text


class Call(PendingCall):
    """A call that needs no head."""

    async def _run(self):
        return 1


class Failing(PendingCall):
    """A call that fails on a rank."""

    async def _run(self):
        raise ValueError("from a rank")


def made(kind=Call):
    client = SimpleNamespace(loop=SimpleNamespace(asyncio_loop=asyncio.get_running_loop()))
    return kind(SimpleNamespace(client=client, name="f", on_event=None))


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


async def test_a_callback_of_a_call_can_wait_for_the_event_loop():
    loop, waited = asyncio.get_running_loop(), asyncio.Event()

    async def work():
        waited.set()

    future = made().start()
    future.add_done_callback(lambda _: asyncio.run_coroutine_threadsafe(work(), loop).result(DEADLINE))

    async with asyncio.timeout(DEADLINE):
        await waited.wait()


async def test_callbacks_of_a_call_run_one_after_another_in_their_order_also_after_an_error(caplog):
    began, release, ended, order = threading.Event(), threading.Event(), threading.Event(), []

    def first(_):
        began.set()
        release.wait(DEADLINE)
        order.append(1)
        raise ValueError("from a callback")

    future = made().start()
    future.add_done_callback(first)
    future.add_done_callback(lambda _: order.append(2))
    assert await asyncio.to_thread(began.wait, DEADLINE)
    future.add_done_callback(lambda _: order.append(3))
    future.add_done_callback(lambda _: ended.set())
    threads = [thread.name for thread in threading.enumerate()]
    release.set()

    assert await asyncio.to_thread(ended.wait, DEADLINE)
    assert order == [1, 2, 3]
    assert threads.count("call-done") == 1
    assert "from a callback" in caplog.text


async def test_the_frames_of_an_error_of_a_call_have_their_arguments():
    call = made(Failing)

    with raises(ValueError, args=("from a rank",)) as caught:
        await asyncio.to_thread(call.result)

    (frame,) = [entry.frame.raw for entry in caught.traceback if entry.name == "result"]
    assert inspect.formatargvalues(*inspect.getargvalues(frame)) == "(self=None)"


def test_output_that_cannot_be_shown_fails_no_call(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    show_text("lost")

    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, "ascii"))
    show_text("caf\u00e9\n")
    assert shown.getvalue() == b"caf\\xe9\n"

    sys.stdout.close()
    show_text("lost")
