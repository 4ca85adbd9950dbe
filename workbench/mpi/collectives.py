"""Operations of all ranks on buffers, that can be ended from outside."""
# ruff: noqa: D102, N802  (names and documentation are mpi4py's)

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from workbench.mpi.counters import STEP
from workbench.mpi.large_messages import LARGE, perform
from workbench.mpi.message_size import items, nbytes
from workbench.mpi.operation import InterruptibleComm, operation, waiting
from workbench.mpi.polling import wait
from workbench.mpi.traffic import reduce_scatter


class Collectives(InterruptibleComm):
    """Blocking collective operations on buffers; where all ranks know that a message is large, see `large`."""

    @operation
    def Bcast(self, buf: Any, root: int = 0) -> None:
        if nbytes(buf) < LARGE:
            self._run(MPI.Comm.Ibcast, buf, root)
        elif self.rank == root:
            perform(self, "Bcast", (buf, root), buf, None, root=root)
        else:
            perform(self, "Bcast", (buf, root), None, buf, root=root)

    @operation
    def Reduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, root: int = 0) -> None:
        is_root = self.rank == root
        # for mpi4py nothing is in place, too
        in_place = sendbuf is MPI.IN_PLACE or (is_root and sendbuf is None)
        if nbytes(recvbuf if in_place else sendbuf) < LARGE:
            self._run(MPI.Comm.Ireduce, sendbuf, recvbuf, op, root)
        else:
            sent = MPI.IN_PLACE if in_place else sendbuf
            # no buffer at the root is no way to receive nothing: mpi4py will refuse it
            received = (() if recvbuf is None else recvbuf) if is_root else None
            perform(self, "Reduce", (sendbuf, recvbuf, op, root), sent, received, op=op, root=root)

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        # as `operation` has it, but for a call less: this one is in the innermost loops
        watch = self.watch
        watch.enter("Allreduce")
        try:
            if (size := nbytes(recvbuf)) < LARGE:
                wait(MPI.Comm.Iallreduce(self, sendbuf, recvbuf, op), watch.check, held=(sendbuf, recvbuf, op))
            else:
                perform(self, "Allreduce", (sendbuf, recvbuf, op), sendbuf, recvbuf, op=op)
            if (counters := watch.counters) is not None:
                counting = self._counting
                if counting is None or counting.counters is not counters:
                    counting = self.counting(counters)
                each = counting.to_others("Allreduce")
                each[0] += size
                # as `size_bin`, but for a call less: no buffer that MPI takes is too large for the bins
                each[size.bit_length() + 1] += 1
                counting.number = number = counting.number + STEP
                if not number & counters.mask:
                    counting.synchronised("Allreduce", watch.since)
        finally:
            watch.leave()

    @operation
    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        if nbytes(recvbuf, self.size) < LARGE:
            self._run(MPI.Comm.Iallgather, sendbuf, recvbuf)
        else:
            perform(self, "Allgather", (sendbuf, recvbuf), sendbuf, recvbuf)

    @operation
    def Alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        if nbytes(recvbuf, self.size) < LARGE:
            self._run(MPI.Comm.Ialltoall, sendbuf, recvbuf)
        else:
            perform(self, "Alltoall", (sendbuf, recvbuf), sendbuf, recvbuf)

    @operation
    def Reduce_scatter(
        self, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int] | None = None, op: MPI.Op = MPI.SUM
    ) -> None:
        if recvcounts is None:
            recvcounts = lengths(self, sendbuf, recvbuf)
            self._run(MPI.Comm.Ireduce_scatter, sendbuf, recvbuf, recvcounts, op)
            self._sent("Reduce_scatter", lambda its: reduce_scatter(its, sendbuf, recvbuf, recvcounts))
        else:
            self._run(MPI.Comm.Ireduce_scatter, sendbuf, recvbuf, recvcounts, op)


def lengths(comm: InterruptibleComm, sendbuf: Any, recvbuf: Any) -> list[int] | None:
    """Return how many items each rank wants of what is reduced and scattered; None if that cannot be asked.

    mpi4py would ask by a call that cannot be ended.
    """
    if sendbuf is None or sendbuf is MPI.IN_PLACE:
        return None
    mine, counts = np.array([items(recvbuf)], dtype=np.int64), np.zeros(comm.size, dtype=np.int64)
    wait(MPI.Comm.Iallgather(comm, mine, counts), comm.watch.check, held=(mine, counts))
    return counts.tolist()


class NeighbourCollectives(InterruptibleComm, MPI.Topocomm):
    """Blocking collective operations of the neighbours in a topology, on buffers."""

    def _exchange(self, name: str, *args: Any) -> None:
        """Exchange something with each neighbour, by the method of this name."""
        if self._twice_a_neighbour():
            # The twin of Open MPI confuses what comes from the left and from the right, where both are one rank.
            self.meet(MPI.Comm.Ibarrier(self))
            self.blocking(getattr(MPI.Topocomm, name), *args)
        else:
            self._run(getattr(MPI.Topocomm, f"I{name.lower()}"), *args)

    def _twice_a_neighbour(self) -> bool:
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
    "Reduce_scatter_block", "Scan", "Exscan",
):  # fmt: skip
    _blocking, _twin = getattr(MPI.Intracomm, _name), getattr(MPI.Intracomm, f"I{_name.lower()}")
    setattr(Collectives, _name, waiting(_blocking, _twin))
for _name in ("allgather", "allgatherv"):
    _blocking, _twin = getattr(MPI.Topocomm, f"Neighbor_{_name}"), getattr(MPI.Topocomm, f"Ineighbor_{_name}")
    setattr(NeighbourCollectives, _blocking.__name__, waiting(_blocking, _twin))
