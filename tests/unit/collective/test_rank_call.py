"""A call on a rank, without MPI."""

from __future__ import annotations

import _imp
import threading

from support.patience import DEADLINE

from workbench.collective import rank_call, serialize
from workbench.collective.rank_call import SpmdCall
from workbench.mpi.call_state import CallCancelled


def cut_off_in_an_import():
    _imp.acquire_lock()
    raise CallCancelled("the call was cancelled")


class CutOff:
    """Unpacked by code that is interrupted while it imports."""

    def __reduce__(self):
        return cut_off_in_an_import, ()


def test_a_call_that_is_interrupted_in_an_import_leaves_imports_to_the_other_threads_of_the_rank():
    call = SpmdCall("1f", "call", 0, (0,))

    assert call.unpack(serialize.dumps(CutOff()), []) != {}, "the call was not interrupted"
    assert not _imp.lock_held()


def test_a_call_ends_although_a_callback_of_the_garbage_collector_has_swallowed_its_interrupt(monkeypatch):
    interrupt, swallowed = rank_call._interrupt, []
    monkeypatch.setattr(
        rank_call, "_interrupt", lambda thread: interrupt(thread) if swallowed else swallowed.append(thread)
    )
    call = SpmdCall("0", "mean", 0, (0,))

    def is_interrupted():
        call._interrupted = True

    thread = threading.Thread(target=call._attend, args=[is_interrupted], daemon=True)
    thread.start()
    thread.join(DEADLINE)
    assert (thread.is_alive(), len(swallowed)) == (False, 1)
