"""A call on a rank, without MPI."""

from __future__ import annotations

import _imp
import contextlib
import ctypes
import importlib
import sys
import threading
import time
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
from support.patience import DEADLINE
from support.processes import until
from support.spmd import in_a_thread

from workbench.collective import rank_call, serialize
from workbench.collective.rank_call import SpmdCall
from workbench.mpi.call_state import CallCancelled
from workbench.positions import describe


def cut_off_in_an_import():
    _imp.acquire_lock()
    raise CallCancelled("the call was canceled")


class CutOff:
    """Unpacked by code that is interrupted while it imports."""

    def __reduce__(self):
        return cut_off_in_an_import, ()


def test_a_call_that_is_interrupted_in_an_import_leaves_imports_to_the_other_threads_of_the_rank():
    call = SpmdCall("1f", "call", 0, (0,))

    assert call.unpack(serialize.dumps(CutOff()), []) != {}, "the call was not interrupted"
    assert not _imp.lock_held()


begun, over = threading.Event(), threading.Event()


def compute():
    begun.set()
    while not over.is_set():
        pass


class Computed:
    """Unpacked by code that computes until `over`."""

    def __reduce__(self):
        return compute, ()


def test_a_call_ends_although_a_callback_of_the_garbage_collector_has_swallowed_its_interrupt(monkeypatch):
    interrupt, interrupts = ctypes.pythonapi.PyThreadState_SetAsyncExc, []

    def swallow_two(*arguments):
        interrupts.append(arguments)
        if len(interrupts) > 2:
            interrupt(*arguments)

    monkeypatch.setattr(ctypes.pythonapi, "PyThreadState_SetAsyncExc", swallow_two)
    call = SpmdCall("0", "mean", 0, (0,))
    thread = threading.Thread(target=call.unpack, args=[serialize.dumps(Computed()), []], daemon=True)
    thread.start()
    begun.wait(DEADLINE)
    send_interrupt, _ = end(call)
    send_interrupt()
    assert len(interrupts) == 1
    over.set()
    thread.join(DEADLINE)
    assert (thread.is_alive(), len(interrupts)) == (False, 3)


@pytest.mark.parametrize(
    "pack",
    [lambda value: rank_call.pack_value(value, 1 << 20), lambda value: serialize.pack_error(ValueError(value))],
    ids=["a value", "an error"],
)
def test_what_is_too_large_for_the_notebook_is_not_copied(pack):
    value = np.zeros(200 << 20, np.uint8)
    tracemalloc.start()
    try:
        pack(value)
        assert tracemalloc.get_traced_memory()[1] < value.nbytes / 2
    finally:
        tracemalloc.stop()


def test_the_size_of_a_value_that_is_too_large_is_the_size_of_its_parcel():
    value = [np.zeros(100_000), "x" * 300_000]
    assert rank_call.pack_value(value, 1000) == {"nbytes": len(serialize.dumps(value))}


@pytest.mark.parametrize("operation", [None, "Recv"])
def test_a_thread_that_receives_when_its_call_returns_is_ended_and_the_communicator_is_not_used_again(operation):
    call = SpmdCall("3d", "call", 0, (0,))
    if operation:
        call.watch.enter(operation)  # in a thread of the function
    call.watch.end_left_threads(complete=True)

    with pytest.raises(CallCancelled) if operation else contextlib.nullcontext():
        call.watch.check()
    for use in (call.watch.check, lambda: call.watch.enter("Recv")):
        with pytest.raises(CallCancelled):
            in_a_thread(use)
    assert call.left_behind()["pending"] == bool(operation)
    if operation:
        abandoned = []
        assert not call.settle(SimpleNamespace(discard=abandoned.append))
        assert abandoned == [0]


SLOW = """
import pathlib

folder = pathlib.Path(__file__).parent
(folder / "begun").touch()
while not (folder / "go on").exists():
    pass
complete = True
"""


class Imported:
    """Unpacked by the import of a module."""

    def __init__(self, module):
        self.module = module

    def __reduce__(self):
        return importlib.import_module, (self.module,)


@pytest.fixture
def importing(tmp_path, monkeypatch):
    """A call that imports a module, which waits for a file, and its thread."""
    (tmp_path / "slow_module.py").write_text(SLOW)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "slow_module", None)
    del sys.modules["slow_module"]  # the end of the test deletes the module
    call = SpmdCall("2e", "call", 0, (0,))
    thread = threading.Thread(target=call.unpack, args=[serialize.dumps(Imported("slow_module")), []], daemon=True)
    thread.start()
    until("the import to begin", (tmp_path / "begun").exists)
    yield call, thread
    (tmp_path / "go on").touch()
    thread.join(DEADLINE)


def end(call):
    """End a call that computes; return what the rank does after a time."""
    later = []
    call.end("the call was canceled", lambda _, step: later.append(step))
    clock = time.pthread_getcpuclockid(call.thread)
    used = time.clock_gettime(clock)
    until("the call to compute", lambda: time.clock_gettime(clock) > used)
    return later


def test_a_call_that_is_ended_in_an_import_completes_the_import(importing, tmp_path):
    call, thread = importing
    interrupt, _ = end(call)
    interrupt()
    (tmp_path / "go on").touch()
    thread.join(DEADLINE)
    assert (thread.is_alive(), sys.modules["slow_module"].complete) == (False, True)


def test_an_import_that_does_not_end_is_interrupted(importing, monkeypatch):
    monkeypatch.setattr(rank_call, "IMPORT_S", 0.0)
    call, thread = importing
    interrupt, _ = end(call)
    interrupt()
    thread.join(DEADLINE)
    assert (thread.is_alive(), "slow_module" in sys.modules) == (False, False)


def test_the_position_of_a_call_that_imports_a_module_is_the_import(importing):
    call, _ = importing
    assert describe({1: call.where()}).startswith("rank 1 is importing a module at slow_module.py:")
