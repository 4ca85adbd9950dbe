"""Allreduce of large arrays between ranks of one node: each rank reduces one part, and the parts are gathered.

Reduce-scatter and allgather move the fewest bytes (R. Rabenseifner, *Optimization of Collective Reduction
Operations*, 2004, section 3). Both are non-blocking operations here, so the wait is cancelable, and leaves the core to
other programs. Within a node they are as fast as the blocking Allreduce of the MPI library. Between nodes the library
knows the network.
"""

from __future__ import annotations

import zlib
from itertools import accumulate
from typing import Any

import numpy as np
from mpi4py import MPI

from workbench.mpi.operation import InterruptibleComm
from workbench.mpi.polling import wait
from workbench.mpi.shared_reduction import reduce_in_order

# Bytes that are reduced at once: more than the 25 MiB of a bucket of gradients, and a limit for the second copy.
_AT_ONCE = 32 << 20


def on_one_node(comm: InterruptibleComm) -> bool:
    """Return whether all ranks share a node; collective in the first call with a communicator."""
    if comm.one_node is None:
        node = zlib.crc32(MPI.Get_processor_name().encode())
        extremes = np.array([node, -node])
        wait(MPI.Comm.Iallreduce(comm, MPI.IN_PLACE, extremes, MPI.MAX), comm.watch.check, buffers=extremes)
        comm.one_node = bool(extremes[0] == -extremes[1])
    return comm.one_node


def reduce_in_parts(comm: InterruptibleComm, send: Any, receive: Any, op: MPI.Op) -> None:
    """Reduce contiguous arrays, of the same size and type on all ranks, with a predefined operation.

    `send` and `receive` do not overlap, or `send` is ``MPI.IN_PLACE``.
    """
    received = receive.reshape(-1)
    at_once = _AT_ONCE // received.itemsize
    for begin in range(0, received.size, at_once):
        row = received[begin : begin + at_once]
        _reduce(comm, row if send is MPI.IN_PLACE else send.reshape(-1)[begin : begin + at_once], row, op)


def _reduce(comm: InterruptibleComm, sent: Any, received: Any, op: MPI.Op) -> None:
    size, rank, check = comm.size, comm.rank, comm.watch.check
    counts = [(received.size + later) // size for later in range(size)]
    own = counts[rank]
    starts = _starts(counts)
    others = np.empty((size - 1, own), received.dtype)
    to_others, from_others = counts.copy(), [own] * size
    to_others[rank] = from_others[rank] = 0
    exchanged = [sent, (to_others, starts)], [others, (from_others, _starts(from_others))]
    wait(MPI.Comm.Ialltoallv(comm, *exchanged), check, buffers=exchanged)
    part = slice(starts[rank], starts[rank] + own)
    reduced = received[part]
    parts = [*others]
    parts.insert(rank, sent[part].copy() if sent is received and rank else sent[part])
    reduce_in_order(parts, reduced, op)
    gathered = MPI.IN_PLACE, [received, (counts, starts)]
    wait(MPI.Comm.Iallgatherv(comm, *gathered), check, buffers=gathered)


def _starts(counts: list[int]) -> list[int]:
    return [0, *accumulate(counts[:-1])]
