"""Cancelable collective operations on buffers, also on large ones, for which the blocking call is faster.

The non-blocking counterpart of a large operation is some percent slower, and does not use the hardware of some
networks. But a blocking call with different arguments on the ranks may never return. So the ranks compare the
signatures of the call. If all are equal, with arrays that mpi4py and MPI accept, they make the call, and otherwise post
the counterpart. An Allreduce between ranks of one node is made by `shared_reduction`.
"""

from __future__ import annotations

# ruff: noqa: D102, N802  (names and documentation are mpi4py's)
from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from workbench.mpi.counters import STEP
from workbench.mpi.matching_buffers import compare_each_use
from workbench.mpi.message_size import items, nbytes
from workbench.mpi.operation import InterruptibleComm, operation, via_nonblocking
from workbench.mpi.polling import wait
from workbench.mpi.same_buffers import UNTIL, compare, compare_first_use
from workbench.mpi.shared_reduction import Allreduce, ReduceScatter, create, on_one_node, reduce_in_parts
from workbench.mpi.traffic import reduce_scatter

# Bytes from which all ranks agree on a blocking call, because non-blocking counterparts of Open MPI are slower. With
# this size the agreement costs some percent of the operation, as much as the non-blocking counterpart.
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


class Collectives(InterruptibleComm):
    """Blocking collective operations on buffers; large ones use `large_messages.run_large`."""

    def _compare(self, name: str, sendbuf: Any, recvbuf: Any) -> None:
        if self.collectives < UNTIL:
            compare_first_use(self, name, sendbuf, recvbuf)

    @operation
    def Bcast(self, buf: Any, root: int = 0) -> None:
        if nbytes(buf) < LARGE:
            self._run(MPI.Comm.Ibcast, buf, root)
        elif self.rank == root:
            run_large(self, "Bcast", (buf, root), buf, None, root=root)
        else:
            run_large(self, "Bcast", (buf, root), None, buf, root=root)

    @operation
    def Reduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, root: int = 0) -> None:
        is_root = self.rank == root
        # mpi4py treats None as in place.
        in_place = sendbuf is MPI.IN_PLACE or (is_root and sendbuf is None)
        if nbytes(recvbuf if in_place else sendbuf) < LARGE:
            self._run(MPI.Comm.Ireduce, sendbuf, recvbuf, op, root)
        else:
            sent = MPI.IN_PLACE if in_place else sendbuf
            # mpi4py raises if the root has no receive buffer.
            received = (() if recvbuf is None else recvbuf) if is_root else None
            run_large(self, "Reduce", (sendbuf, recvbuf, op, root), sent, received, op=op, root=root)

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        # This is `operation` inlined, because the innermost loops of programs call Allreduce.
        watch = self.watch
        if sendbuf is None:  # mpi4py treats None as in place
            sendbuf = MPI.IN_PLACE
        watch.enter("Allreduce")
        try:
            if watch.compares:
                compare_each_use(self, watch.check, "Allreduce", (sendbuf, recvbuf, op), {})
            if (number := self.collectives) < UNTIL:
                compare_first_use(self, "Allreduce", sendbuf, recvbuf)
            if (size := nbytes(recvbuf)) >= LARGE_ON_NODE and (on_one_node(self) or size >= LARGE):
                run_large(self, "Allreduce", (sendbuf, recvbuf, op), sendbuf, recvbuf, op=op)
            else:
                wait(MPI.Comm.Iallreduce(self, sendbuf, recvbuf, op), watch.check, buffers=(sendbuf, recvbuf, op))
            self.collectives = number + 1
            if (counters := watch.counters) is not None:
                counting = self._counting
                if counting is None or counting.counters is not counters:
                    counting = self.counting(counters)
                counts = counting.to_others("Allreduce")
                counts[0] += size
                # This is `size_bin` inlined: buffers of MPI fit into the bins.
                counts[size.bit_length() + 1] += 1
                counting.number = number = counting.number + STEP
                if not number & counters.mask:
                    counting.synchronized("Allreduce", watch.since)
        finally:
            watch.leave()

    @operation
    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        self._compare("Allgather", sendbuf, recvbuf)
        if nbytes(recvbuf, self.size) < LARGE:
            self._run(MPI.Comm.Iallgather, sendbuf, recvbuf)
        else:
            run_large(self, "Allgather", (sendbuf, recvbuf), sendbuf, recvbuf)

    @operation
    def Alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        self._compare("Alltoall", sendbuf, recvbuf)
        if nbytes(recvbuf, self.size) < LARGE:
            self._run(MPI.Comm.Ialltoall, sendbuf, recvbuf)
        else:
            run_large(self, "Alltoall", (sendbuf, recvbuf), sendbuf, recvbuf)

    @operation
    def Reduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        self._compare("Reduce_scatter_block", sendbuf, recvbuf)
        sent = MPI.IN_PLACE if sendbuf is None else sendbuf
        # In place the buffer has the parts of all ranks.
        part = nbytes(recvbuf, self.size if sent is MPI.IN_PLACE else 1)
        if part * self.size >= LARGE_ON_NODE and on_one_node(self):
            run_large(self, "Reduce_scatter_block", (sendbuf, recvbuf, op), sent, recvbuf, op=op)
        else:
            self._run(MPI.Comm.Ireduce_scatter_block, sendbuf, recvbuf, op)

    @operation
    def Reduce_scatter(
        self, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int] | None = None, op: MPI.Op = MPI.SUM
    ) -> None:
        self._compare("Reduce_scatter", sendbuf, recvbuf)
        if recvcounts is None:
            recvcounts = lengths(self, sendbuf, recvbuf)
            self._run(MPI.Comm.Ireduce_scatter, sendbuf, recvbuf, recvcounts, op)
            self._count_sent("Reduce_scatter", lambda counter: reduce_scatter(counter, sendbuf, recvbuf, recvcounts))
        else:
            self._run(MPI.Comm.Ireduce_scatter, sendbuf, recvbuf, recvcounts, op)


def lengths(comm: InterruptibleComm, sendbuf: Any, recvbuf: Any) -> list[int] | None:
    """Return the number of items that each rank receives in a reduce-scatter, or None in place.

    mpi4py would gather these numbers in a call that cannot be canceled.
    """
    if sendbuf is None or sendbuf is MPI.IN_PLACE:
        return None
    count, counts = np.array([items(recvbuf)], dtype=np.int64), np.zeros(comm.size, dtype=np.int64)
    wait(MPI.Comm.Iallgather(comm, count, counts), comm.watch.check, buffers=(count, counts))
    return counts.tolist()


class NeighborCollectives(InterruptibleComm, MPI.Topocomm):
    """Blocking collective operations of neighbors in a topology, on buffers."""

    def _exchange(self, name: str, *args: Any) -> None:
        """Exchange data with each neighbor, with the method `name`."""
        if self._is_twice_a_neighbor():
            # The non-blocking operation of Open MPI confuses the left and the right neighbor if both are one rank.
            self.synchronize(MPI.Comm.Ibarrier(self))
            self.blocking(getattr(MPI.Topocomm, name), *args)
        else:
            self._run(getattr(MPI.Topocomm, f"I{name.lower()}"), *args)

    def _is_twice_a_neighbor(self) -> bool:
        if not isinstance(self, MPI.Cartcomm):
            return False
        dims, periods, _ = self.Get_topo()
        return any(period and length <= 2 for length, period in zip(dims, periods, strict=True))

    @operation
    def Neighbor_alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        self._exchange("Neighbor_alltoall", sendbuf, recvbuf)

    @operation
    def Neighbor_alltoallv(self, sendbuf: Any, recvbuf: Any) -> None:
        self._exchange("Neighbor_alltoallv", sendbuf, recvbuf)

    @operation
    def Neighbor_alltoallw(self, sendbuf: Any, recvbuf: Any) -> None:
        self._exchange("Neighbor_alltoallw", sendbuf, recvbuf)


for _name in (
    "Barrier", "Gather", "Gatherv", "Scatter", "Scatterv", "Allgatherv", "Alltoallv", "Alltoallw",
    "Scan", "Exscan",
):  # fmt: skip
    _blocking, _counterpart = getattr(MPI.Intracomm, _name), getattr(MPI.Intracomm, f"I{_name.lower()}")
    setattr(Collectives, _name, via_nonblocking(_blocking, _counterpart))
for _name in ("allgather", "allgatherv"):
    _blocking, _counterpart = getattr(MPI.Topocomm, f"Neighbor_{_name}"), getattr(MPI.Topocomm, f"Ineighbor_{_name}")
    setattr(NeighborCollectives, _blocking.__name__, via_nonblocking(_blocking, _counterpart))
