"""Large messages: the ranks agree, in a cancelable operation, to make the blocking call.

The non-blocking counterpart of a large operation is some percent slower, and does not use the hardware of some
networks. But a blocking call with different arguments on the ranks may never return. So the ranks compare the
signatures of the call. If all are equal, with arrays that mpi4py and MPI accept, they make the call, and otherwise post
the counterpart. An Allreduce between ranks of one node is made by `node_reduction`, and by `shared_reduction` if the
communicator is used for several.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI

from workbench.mpi.node_reduction import on_one_node, reduce_in_parts
from workbench.mpi.operation import InterruptibleComm
from workbench.mpi.polling import wait
from workbench.mpi.same_buffers import compare
from workbench.mpi.shared_reduction import Allreduce, ReduceScatter, create

# Bytes. With this size the agreement costs some percent of the operation, as much as the non-blocking counterpart.
LARGE = 4 << 20
LARGE_ON_NODE = 256 << 10
"""The same for the reductions of `_WORKS` between ranks of one node, which make no blocking call."""

# Reductions until the ranks share memory, which takes some hundred microseconds.
_UNTIL_SHARED = 3
_NAMES = ("Bcast", "Reduce", "Allreduce", "Allgather", "Alltoall", "Reduce_scatter_block")
# What ranks of one node reduce by shared memory.
_WORKS = {"Allreduce": Allreduce, "Reduce_scatter_block": ReduceScatter}
_OPS = (None, MPI.SUM, MPI.PROD, MPI.MAX, MPI.MIN, MPI.LAND, MPI.LOR, MPI.LXOR, MPI.BAND, MPI.BOR, MPI.BXOR)
# Type codes that each MPI supports, and those for which each MPI has all operations.
_CODES = "bBhHiIlLqQfdFD"
_INTEGERS = "bBhHiIlLqQ"
_ARITHMETIC = {"f": (MPI.SUM, MPI.PROD, MPI.MAX, MPI.MIN), "F": (MPI.SUM, MPI.PROD)}


def run_large(
    comm: InterruptibleComm,
    name: str,
    arguments: tuple[Any, ...],
    send: Any,
    receive: Any,
    *,
    op: MPI.Op | None = None,
    root: int = 0,
) -> None:
    """Make the fastest call for the method `name` if all ranks make the same one, else the non-blocking; collective.

    `send` and `receive` are the buffers of this rank, or None.
    """
    signature = _signature(name, send, receive, comm.size, op=op, root=root)
    if name in _WORKS and op is not None and on_one_node(comm):
        if comm.shared_reduction is not None:
            if comm.shared_reduction.run(signature, signature and _WORKS[name](comm, send, receive, op)):
                return
        elif (name == "Allreduce" or comm.large_reductions < _UNTIL_SHARED) and _all_agree(
            comm, signature, name, send, receive, blocking=False
        ):
            comm.large_reductions += 1
            if comm.size > 1 and comm.large_reductions == _UNTIL_SHARED:
                comm.shared_reduction = create(comm)
            if name == "Allreduce":
                reduce_in_parts(comm, send, receive, op)
                return
    elif _all_agree(comm, signature, name, send, receive):
        comm.blocking(getattr(MPI.Intracomm, name), *arguments)
        return
    counterpart = getattr(MPI.Intracomm, f"I{name.lower()}")
    wait(counterpart(comm, *arguments), comm.watch.check, buffers=arguments)


# The caches are cold after large messages, so each line below costs microseconds.


def _signature(
    name: str, send: Any, receive: Any, size: int, *, op: MPI.Op | None, root: int
) -> tuple[int, int] | None:
    """Return the signature of a call as two numbers, which must be equal on all ranks; None if it may be refused."""
    in_place = send is MPI.IN_PLACE
    first = receive if in_place or send is None else send
    code = _code(first)
    if code is None:
        return None
    # In an Allgather each rank sends a part of the array, in a reduce-scatter each one receives a part.
    length = first.size * size if first is send and name == "Allgather" else first.size
    if name == "Reduce_scatter_block":
        if in_place or length % size:
            return None
        length //= size
    if receive is not None:
        # Some MPIs raise for overlapping arrays, and only on this rank.
        if first is send and (_code(receive) != code or np.may_share_memory(send, receive)):
            return None
        if receive.size != length or not receive.flags.writeable:
            return None
    if (name == "Alltoall" and length % size) or not _is_defined(op, chr(code)) or root not in range(size):
        return None
    # In a Reduce only the root may be in place.
    all_in_place = in_place and name != "Reduce"
    kind = (_NAMES.index(name) << 5 | _OPS.index(op) << 1 | all_in_place) << 8 | code
    return length, kind << 32 | root


def _all_agree(
    comm: InterruptibleComm,
    signature: tuple[int, int] | None,
    name: str,
    send: Any,
    receive: Any,
    *,
    blocking: bool = True,
) -> bool:
    """Return whether the signatures of all ranks are equal. If so, all ranks make the call, which may be blocking.

    Raises
    ------
    InvalidRequest
        If the arrays of the ranks have several types or sizes.
    """
    length, kind = signature or (-1, -2 - comm.rank)
    extremes = np.array([length, kind, -length, -kind])
    request = MPI.Comm.Iallreduce(comm, MPI.IN_PLACE, extremes, MPI.MAX)
    if blocking:
        comm.synchronize(request, extremes)
    else:
        wait(request, comm.watch.check, buffers=extremes)
    longest, max_kind, shortest, min_kind = extremes.tolist()
    if longest == -shortest and max_kind == -min_kind:
        return signature is not None
    if shortest <= 0:  # each rank has a signature
        in_place = send is MPI.IN_PLACE
        sized = not in_place or name in {"Allreduce", "Reduce"}
        compare(comm, name, receive if in_place or send is None else send, sized=sized)
    return False


def _is_defined(op: MPI.Op | None, code: str) -> bool:
    """Return whether each MPI has an operation for a type: otherwise it may raise, and only when it reduces."""
    return op in _OPS and (op is None or code in _INTEGERS or op in _ARITHMETIC["f" if code in "fd" else "F"])


def _code(array: Any) -> int | None:
    """Return the type code of an array that mpi4py and MPI accept; None for other objects."""
    if type(array) is not np.ndarray or not array.flags.c_contiguous:
        return None
    code = array.dtype.char
    return ord(code) if code in _CODES and array.dtype.isnative else None
