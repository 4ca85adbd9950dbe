"""Large messages: ranks agree, in a way that can be ended, to make the blocking call that MPI is tuned for.

The non-blocking twin of a large operation is some percent slower, and lacks what some networks do in hardware. But a
blocking call that is not made on all ranks alike never returns. So each says what it is about to do; where all say
the same, of arrays that mpi4py and MPI are sure to take, they do it, and otherwise each posts the twin.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI

from workbench.mpi.operation import InterruptibleComm
from workbench.mpi.polling import wait

# Bytes from which on it pays: to agree takes some percent of the time of such an operation, as the twin does.
LARGE = 4 << 20

_NAMES = ("Bcast", "Reduce", "Allreduce", "Allgather", "Alltoall")
_OPS = (None, MPI.SUM, MPI.PROD, MPI.MAX, MPI.MIN, MPI.LAND, MPI.LOR, MPI.LXOR, MPI.BAND, MPI.BOR, MPI.BXOR)
# Types of elements that each MPI knows.
_CODES = "bBhHiIlLqQfdFD"


def perform(
    comm: InterruptibleComm,
    name: str,
    arguments: tuple[Any, ...],
    send: Any,
    receive: Any,
    *,
    op: MPI.Op | None = None,
    root: int = 0,
) -> None:
    """Make a blocking call where all ranks are sure to make the same, else post its twin; collective.

    Parameters
    ----------
    name
        Of the blocking method.
    arguments
        Of that method.
    send, receive
        What the rank sends, and what it receives into; None if nothing.
    op, root
        Of the operation, where it has one.
    """
    if _agree(comm, _words(name, send, receive, comm.size, op=op, root=root)):
        comm.blocking(getattr(MPI.Intracomm, name), *arguments)
    else:
        twin = getattr(MPI.Intracomm, f"I{name.lower()}")
        wait(twin(comm, *arguments), comm.watch.check, held=arguments)


# What comes now runs when the messages before have taken all that was in the caches: each line costs microseconds.


def _words(name: str, send: Any, receive: Any, size: int, *, op: MPI.Op | None, root: int) -> tuple[int, int] | None:
    """Return what is to be the same on all ranks, as two numbers; None where the call may not be taken as it is."""
    in_place = send is MPI.IN_PLACE
    first = receive if in_place or send is None else send
    code = _code(first)
    if code is None:
        return None
    # whole arrays; of what is gathered each sends its part
    length = first.size * size if first is send and name == "Allgather" else first.size
    if receive is not None:
        # of what is received and sent at once some MPIs refuse arrays that overlap, on this rank alone
        if first is send and (_code(receive) != code or np.may_share_memory(send, receive)):
            return None
        if receive.size != length or not receive.flags.writeable:
            return None
    if (name == "Alltoall" and length % size) or op not in _OPS or root not in range(size):
        return None
    # of a reduction to one rank the root alone may say it
    same = in_place and name != "Reduce"
    what = (_NAMES.index(name) << 5 | _OPS.index(op) << 1 | same) << 8 | code
    return length, what << 32 | root


def _agree(comm: InterruptibleComm, words: tuple[int, int] | None) -> bool:
    """Tell whether all ranks say the same words, and are sure to make the call then."""
    length, what = words or (-1, -2 - comm.rank)
    extremes = np.array([length, what, -length, -what])
    request = MPI.Comm.Iallreduce(comm, MPI.IN_PLACE, extremes, MPI.MAX)
    comm.meet(request, extremes)
    longest, most, shortest, least = extremes.tolist()
    return words is not None and longest == -shortest and most == -least


def _code(array: Any) -> int | None:
    """Return the type of an array that is sure to be taken as it is; None for any other."""
    if type(array) is not np.ndarray or not array.flags.c_contiguous:
        return None
    code = array.dtype.char
    return ord(code) if code in _CODES and array.dtype.isnative else None
