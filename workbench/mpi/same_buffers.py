"""A check that the ranks pass arrays of one type and size to a collective operation.

MPI adds the bytes of an integer to those of a real number without an error. The ranks compare their arrays in the first
use of each operation on a communicator of a call, and where they agree on a blocking call (`large_messages`). Small
arrays of Bcast, Reduce and others in which a rank need not wait for all others are left out: ranks would wait longer.
`matching_buffers` compares all uses, for users who ask for this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from workbench.errors import InvalidRequest
from workbench.mpi.matching_buffers import different, dtype_of
from workbench.mpi.message_size import ANY, kind_of
from workbench.mpi.polling import wait

if TYPE_CHECKING:
    from workbench.mpi.operation import InterruptibleComm

UNTIL = 64
"""Collective operations on a communicator after which first uses are not looked for, so that loops lose no time."""
_NAMES = ("Bcast", "Reduce", "Allreduce", "Allgather", "Alltoall", "Reduce_scatter_block", "Reduce_scatter")


def compare_first_use(comm: InterruptibleComm, name: str, sendbuf: Any, recvbuf: Any) -> None:
    """Run `compare` if the communicator has not been used for the operation; collective then."""
    if name not in comm.compared:
        comm.compared = (*comm.compared, name)
        if name == "Allreduce":
            compare(comm, name, recvbuf)
        elif sendbuf is None or sendbuf is MPI.IN_PLACE:
            compare(comm, name, recvbuf, sized=False)
        else:
            compare(comm, name, sendbuf, sized=name != "Reduce_scatter")


def compare(comm: InterruptibleComm, name: str, array: Any, *, sized: bool = True) -> None:
    """Raise InvalidRequest on all ranks if their arrays have several types, or sizes with `sized`; collective.

    Objects other than arrays are not compared.
    """
    if comm.size == 1:
        return
    own = [_NAMES.index(name), ANY, ANY]
    if type(array) is np.ndarray:
        own[1] = kind_of(array)
        own[2] = array.size if sized else ANY
    extremes = np.array([[number, ANY if number == ANY else -number] for number in own])
    wait(MPI.Comm.Iallreduce(comm, MPI.IN_PLACE, extremes, MPI.MAX), comm.watch.check, buffers=extremes)
    if any(greatest != -least for greatest, least in extremes.tolist() if greatest != ANY):
        raise InvalidRequest(_words(comm, own))


def _words(comm: InterruptibleComm, own: list[int]) -> str:
    mine, of_ranks = np.array(own), np.zeros((comm.size, len(own)), np.int64)
    wait(MPI.Comm.Iallgather(comm, mine, of_ranks), comm.watch.check, buffers=(mine, of_ranks))
    ranks: dict[str, list[int]] = {}
    for rank, (name, kind, size) in enumerate(of_ranks.tolist()):
        text = f"{_NAMES[name]} of {'' if size == ANY else f'{size} '}{dtype_of(kind) or 'unknown type'}"
        ranks.setdefault(text, []).append(rank)
    return different(ranks, "Pass the same type and number of elements on all ranks, for example by astype(float).")
