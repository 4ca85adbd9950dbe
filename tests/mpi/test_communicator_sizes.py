"""The bytes of a message are known as MPI will count them, however the message is specified."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.two_ways import communicators
from support.world import on_ranks

from workbench.errors import InvalidRequest

if TYPE_CHECKING:
    from support.ends import End


@on_ranks
async def test_a_message_has_the_bytes_that_mpi_counts(end: End):
    from mpi4py import MPI

    from workbench.mpi.message_size import items, nbytes

    numbers = np.arange(24.0)
    spaced = MPI.DOUBLE.Create_vector(2, 1, 3).Commit()
    wide = MPI.DOUBLE.Create_resized(0, 16).Commit()
    messages: list[Any] = [
        numbers, numbers.reshape(4, 6), np.asfortranarray(numbers.reshape(4, 6)), np.float32(numbers), numbers[:0],
        bytearray(5), b"12345", memoryview(numbers), array("i", range(7)), np.arange(3) > 1, numbers * 1j,
        [numbers, MPI.DOUBLE], (numbers, "d"), [numbers, "B"], [numbers, 5], [numbers, (5, 2)], [numbers, [5, 2]],
        [numbers, 5, MPI.DOUBLE], [numbers, (5, 2), "d"], [numbers, None, MPI.DOUBLE], [numbers, (None, 4), MPI.DOUBLE],
        [numbers, 5, 2, MPI.DOUBLE], [numbers, None, 2, "d"], (numbers, 7, MPI.BYTE), [numbers, MPI.FLOAT],
        [numbers, 2, spaced], [numbers, 3, wide], [numbers, wide], [None, 0, MPI.INT], [memoryview(numbers), 3, "d"],
    ]  # fmt: skip
    plain, ours = communicators()
    for number, message in enumerate(messages):
        status = MPI.Status()
        request = plain.Isend(message, plain.rank)
        plain.Probe(status=status)
        assert nbytes(message) == status.Get_count(MPI.BYTE), number
        plain.Recv(bytearray(1000))
        request.Wait()
    assert [nbytes(wrong) for wrong in ("text", 5, [], [numbers], [numbers, 1, 2, 3, 4], None)] == [0] * 6
    assert nbytes(numbers, 4) == nbytes([numbers, MPI.DOUBLE], 4) == nbytes([numbers, 6], 4) == 48
    assert items([numbers, 5]) == items([numbers, 5, MPI.BYTE]) == 5
    spaced.Free()
    wide.Free()
    ours.free_derived()
    plain.Free()


@on_ranks
async def test_ranks_agree_on_a_blocking_call_only_where_all_of_them_are_sure(end: End):
    from mpi4py import MPI

    from workbench.mpi.collectives import _all_agree, _signature

    plain, ours = communicators()
    numbers, other = np.ones(8), np.zeros(8)

    def agreed(send: Any, receive: Any, op: Any = MPI.SUM, root: int = 0, name: str = "Allreduce") -> bool:
        return _all_agree(ours, _signature(name, send, receive, ours.size, op=op, root=root), name, send, receive)

    first = ours.rank == 0
    own = MPI.Op.Create(lambda *_: None)
    assert agreed(numbers, other)
    assert agreed(MPI.IN_PLACE, other)
    assert agreed(numbers[:8] if first else numbers, other.reshape(2, 4))
    assert agreed(MPI.IN_PLACE if first else numbers, other if first else None, name="Reduce")
    assert not agreed(MPI.IN_PLACE if first else numbers, other)
    assert not agreed([numbers, MPI.DOUBLE] if first else numbers, other)
    assert not agreed(numbers[::2] if first else numbers[:4], other[:4])
    assert not agreed(numbers, other[:4] if first else other)
    assert not agreed(numbers.astype(int) if first else numbers, other)
    assert not agreed(numbers.astype(">f8"), other.astype(">f8"))
    assert not agreed(numbers, other, MPI.MAX if first else MPI.SUM)
    assert not agreed(numbers, other, own)
    assert not agreed(numbers, other, root=ours.rank, name="Reduce")
    assert not agreed(numbers, other, root=-1, name="Reduce")
    with pytest.raises(InvalidRequest, match=r"Reduce of 8 float64 on rank 0; Allreduce of 8 float64 on rank"):
        agreed(numbers, other, name="Reduce" if first else "Allreduce")
    own.Free()
    plain.Free()
