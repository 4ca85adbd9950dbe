"""If the check is on, buffers that do not match raise an error with a message on all ranks, in each operation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.world import on_ranks

if TYPE_CHECKING:
    from support.ends import End

REDUCTIONS = ("Reduce", "Allreduce", "Scan", "Exscan", "Reduce_scatter_block", "Reduce_scatter")
ROOTED = ("Bcast", "Reduce", "Gather", "Gatherv", "Scatter", "Scatterv")
MOVES = ("Bcast", "Gather", "Gatherv", "Scatter", "Scatterv", "Allgather", "Allgatherv")
EXCHANGES = ("Alltoall", "Alltoallv", "Alltoallw")


def _communicator() -> Any:
    from mpi4py import MPI

    from workbench.mpi.call_state import CallState
    from workbench.mpi.communicator import Communicator

    comm = Communicator(MPI.COMM_WORLD.Dup(), CallState())
    comm.watch.compares = True
    return comm


def _call(comm: Any, name: str, dtype: Any, length: int, root: int = 0) -> Any:
    """Call an operation in which each rank sends `length` elements to each other one; return what is received."""
    from mpi4py import MPI

    parts, kind = comm.size, MPI.Datatype.fromcode(np.dtype(dtype).char)
    one, all_, received = np.ones(length, dtype), np.ones(length * parts, dtype), np.zeros(length * parts, dtype)
    part = np.zeros(length, dtype)
    counts, starts = [length] * parts, [length * rank for rank in range(parts)]
    vector = [received, counts]
    calls = {
        "Bcast": lambda: comm.Bcast(one, root=root),
        "Reduce": lambda: comm.Reduce(one, part if comm.rank == root else None, root=root),
        "Allreduce": lambda: comm.Allreduce(one, part),
        "Scan": lambda: comm.Scan(one, part),
        "Exscan": lambda: comm.Exscan(one, part),
        "Reduce_scatter_block": lambda: comm.Reduce_scatter_block(all_, part),
        "Reduce_scatter": lambda: comm.Reduce_scatter(all_, part, counts),
        "Gather": lambda: comm.Gather(one, received if comm.rank == root else None, root),
        "Gatherv": lambda: comm.Gatherv(one, vector if comm.rank == root else None, root),
        "Scatter": lambda: comm.Scatter(all_ if comm.rank == root else None, part, root),
        "Scatterv": lambda: comm.Scatterv([all_, counts] if comm.rank == root else None, part, root),
        "Allgather": lambda: comm.Allgather(one, received),
        "Allgatherv": lambda: comm.Allgatherv(one, vector),
        "Alltoall": lambda: comm.Alltoall(all_, received),
        "Alltoallv": lambda: comm.Alltoallv([all_, counts], vector),
        "Alltoallw": lambda: comm.Alltoallw(
            *([array, counts, [start * kind.size for start in starts], [kind] * parts] for array in (all_, received))
        ),
    }
    return calls[name]()


def _error(comm: Any, name: str, dtype: Any, length: int, root: int = 0) -> str:
    from workbench.errors import InvalidRequest

    with pytest.raises(InvalidRequest) as caught:
        _call(comm, name, dtype, length, root)
    return str(caught.value)


@on_ranks
async def test_each_operation_compares_types_sizes_and_roots_in_each_use(end: End):
    comm = _communicator()
    last = comm.size - 1
    odd = comm.rank == last
    for name in (*REDUCTIONS, *MOVES, *EXCHANGES):
        _call(comm, name, "f8", 3)
        error = _error(comm, name, "f8", 3 + odd)
        assert name in error, error
        assert ("32 bytes" if name == "Alltoallw" else "float64") in error, error
        if name != "Alltoallw":
            error = _error(comm, name, "i8" if odd else "f8", 3)
            assert all(words in error for words in ("int64", "float64", f"on rank {last}")), error
        if name in ROOTED:
            error = _error(comm, name, "f8", 3, root=int(odd))
            assert all(words in error for words in ("root=0", "root=1")), error
        _call(comm, name, "f8", 3, root=last if name in ROOTED else 0)
    error = _error(comm, "Gather" if odd else "Bcast", "f8", 3)
    assert all(words in error for words in ("Gather(root=0)", "Bcast(root=0)")), error


@on_ranks
async def test_the_words_state_what_each_rank_passes(end: End):
    comm = _communicator()
    last = comm.size - 1
    odd = comm.rank == last
    others = f"rank{'s' * (last > 1)} {', '.join(map(str, range(last)))}"
    error = _error(comm, "Reduce", "i8" if odd else "f8", 3)
    assert f"Reduce(op=SUM, root=0) of 3 int64 on rank {last}" in error
    assert f"Reduce(op=SUM, root=0) of 3 float64 on {others}" in error
    error = _error(comm, "Gather", "f8", 4 if odd else 3)
    assert f"Gather(root=0) of 4 float64 for rank 0 on rank {last}" in error
    assert f"Gather(root=0) of 3 float64 from rank {last} on rank 0. Use the same operation" in error


@on_ranks
async def test_the_words_state_at_most_four_calls_of_at_most_eight_ranks(end: End):
    from workbench.mpi.matching_buffers import different

    calls = {f"Bcast of {number} float64": [number] for number in range(4)}
    assert different(calls, "Pass one.").endswith("; Bcast of 3 float64 on rank 3. Pass one.")
    calls["Bcast of 4 float64"] = [4]
    assert different(calls, "Pass one.").endswith("; Bcast of 3 float64 on rank 3; ... Pass one.")
    assert "Scan on ranks 0, 1, 2, 3, 4, 5, 6, 7, ... Pass one." in different({"Scan": range(9)}, "Pass one.")


@on_ranks
async def test_operators_of_reductions_are_compared(end: End):
    from mpi4py import MPI

    from workbench.errors import InvalidRequest

    comm = _communicator()
    with pytest.raises(InvalidRequest):
        comm.Allreduce(np.ones(1), np.ones(1), MPI.MAX if comm.rank == 0 else MPI.SUM)
    with pytest.raises(InvalidRequest):
        comm.Reduce_scatter(np.ones(comm.size + 1), np.ones(3), _counts(comm.size, comm.rank == 0))
    with pytest.raises(ValueError, match=r"expecting \d+ items, got \d+"):  # of mpi4py
        comm.Reduce_scatter(np.ones(comm.size + 1), np.ones(1), [1] * (comm.size + 1))
    comm.Reduce_scatter(np.ones(comm.size), np.ones(1), [1] * comm.size)


def _counts(size: int, first: bool) -> list[int]:
    counts = [1] * size
    counts[0 if first else 1] += 1
    return counts


@on_ranks
async def test_all_forms_of_matching_messages_are_accepted(end: End):
    from array import array

    from mpi4py import MPI

    comm = _communicator()
    size, rank = comm.size, comm.rank
    first = rank == 0
    triple = MPI.DOUBLE.Create_contiguous(3).Commit()
    forms = (np.ones(3), [np.ones(4), 3], [np.ones(3), MPI.DOUBLE], array("d", [1] * 3), [np.ones(3), 1, triple])
    comm.Bcast(forms[rank % len(forms)])
    comm.Bcast([np.ones(3), 1, triple] if first else np.ones(3))
    comm.Allreduce(MPI.IN_PLACE if first else np.ones(3), np.ones(3))
    comm.Reduce(MPI.IN_PLACE if first else np.ones(3), np.ones(3) if first else None)
    comm.Allgather(MPI.IN_PLACE if first else np.ones(1), np.ones(size))
    comm.Gather(MPI.IN_PLACE if first else np.ones(1), np.ones(size) if first else None)
    comm.Scatter(np.ones(size) if first else None, MPI.IN_PLACE if first else np.ones(1))
    comm.Scatterv([np.ones(size), [1] * size] if first else None, MPI.IN_PLACE if first else np.ones(1))
    comm.Alltoall(MPI.IN_PLACE, np.ones(size))
    comm.Reduce_scatter_block(MPI.IN_PLACE, np.ones(size))
    comm.Reduce_scatter_block(MPI.IN_PLACE if first else np.ones(size), [np.ones(size), 1])
    comm.Reduce_scatter(np.ones(size), np.ones(1))
    counts = [*range(size)]
    comm.Allgatherv(np.ones(rank), [np.ones(sum(counts)), counts])
    comm.Allgatherv(MPI.IN_PLACE, [np.ones(sum(counts)), counts])
    comm.Gatherv(np.ones(rank), [np.ones(sum(counts)), counts] if first else None)
    # An empty array has no type.
    comm.Gatherv(np.ones(rank, "f8" if rank else "i4"), [np.ones(sum(counts)), counts] if first else None)
    comm.Barrier()
    triple.Free()


@on_ranks
async def test_derived_communicators_compare_and_others_do_not(end: End):
    comm = _communicator()
    odd = comm.rank == comm.size - 1
    _error(comm.Dup(), "Scan", "f8", 3 + odd)
    comm.watch.compares = False
    _call(comm, "Scan", "f8", 3)
    _call(comm, "Scan", "i8", 3)
