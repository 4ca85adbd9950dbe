"""A call on a rank, without MPI."""

from __future__ import annotations

import _imp

import pytest

from workbench.collective import serialize
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

    with pytest.raises(CallCancelled):
        call.unpack(serialize.dumps(CutOff()), [])

    assert not _imp.lock_held()
