"""Arrays that differ between the ranks raise an error on all ranks, and the communicator remains usable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from support.world import on_ranks

if TYPE_CHECKING:
    from support.ends import End

LARGE = (4 << 20) // 8 + 1


def _communicator() -> Any:
    from mpi4py import MPI

    from workbench.mpi.call_state import CallState
    from workbench.mpi.communicator import Communicator

    return Communicator(MPI.COMM_WORLD.Dup(), CallState())


def _call(comm: Any, name: str, dtype: Any, length: int) -> None:
    send, parts = np.ones(length, dtype), comm.size
    receive = np.empty(length * (parts if name == "Allgather" else 1), dtype)
    if name == "Bcast":
        comm.Bcast(send)
    elif name == "Reduce_scatter_block":
        comm.Reduce_scatter_block(np.ones(length * parts, dtype), receive)
    elif name == "Alltoall":
        comm.Alltoall(np.ones(length * parts, dtype), np.empty(length * parts, dtype))
    else:
        getattr(comm, name)(send, receive)


def _error(comm: Any, name: str, dtype: Any, length: int) -> str:
    try:
        _call(comm, name, dtype, length)
    except ValueError as error:
        return f"{type(error).__name__}: {error}"
    return ""


@on_ranks
async def test_arrays_of_several_types_or_sizes_are_an_error_on_all_ranks(end: End):
    for name in ("Allreduce", "Allgather", "Alltoall", "Reduce_scatter_block"):
        comm = _communicator()
        first = comm.rank == 0
        for dtype, length, words in (
            ("f8" if first else "i8", 3, "float64 on rank 0"),
            ("f8", 2 + first, "float64 on"),
        ):
            comm.compared = ()
            error = _error(comm, name, dtype, length)
            assert error.startswith("InvalidRequest: the ranks pass different arrays to a collective operation"), error
            assert f"{name} of " in error, error
            assert words in error, error
        _call(comm, name, "f8", 3)
        assert _error(comm, name, "f8", 3) == ""


@on_ranks
async def test_large_arrays_are_compared_in_each_use(end: End):
    comm = _communicator()
    for name in ("Bcast", "Allgather", "Allreduce"):
        _call(comm, name, "f8", LARGE)
        error = _error(comm, name, "f8" if comm.rank else "i8", LARGE)
        assert f"{name} of {LARGE} int64 on rank 0; {name} of {LARGE} float64 on rank" in error, error
        _call(comm, name, "f8", LARGE)


@on_ranks
async def test_different_operations_are_an_error(end: End):
    comm = _communicator()
    error = _error(comm, "Allgather" if comm.rank == 0 else "Allreduce", "f8", 1)
    assert "Allgather of 1 float64 on rank 0; Allreduce of 1 float64 on rank" in error, error


@on_ranks
async def test_other_forms_of_one_message_and_later_uses_are_not_compared(end: End):
    from mpi4py import MPI

    comm = _communicator()
    total = np.zeros(1)
    comm.Allreduce(np.ones(1), [total, MPI.DOUBLE] if comm.rank == 0 else total)
    assert total[0] == comm.size
    comm = _communicator()
    parts = np.zeros(comm.size)
    comm.Allgather(MPI.IN_PLACE, parts)
    began = comm.compared
    comm.Allgather(np.ones(1), parts)
    assert comm.compared is began == ("Allgather",)
