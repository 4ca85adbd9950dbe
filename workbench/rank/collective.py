"""Operations of all ranks on buffers, that can be ended from outside."""

from __future__ import annotations

from mpi4py import MPI

from workbench.rank.watched import Watched, waiting


class Collective(Watched):
    """Blocking collective operations on buffers."""


class Neighbours(Watched, MPI.Topocomm):
    """Blocking collective operations of the neighbours in a topology."""


for _name in (
    "Barrier", "Bcast", "Gather", "Gatherv", "Scatter", "Scatterv", "Allgather", "Allgatherv", "Alltoall",
    "Alltoallv", "Alltoallw", "Reduce", "Allreduce", "Reduce_scatter_block", "Reduce_scatter", "Scan", "Exscan",
):  # fmt: skip
    _blocking, _twin = getattr(MPI.Intracomm, _name), getattr(MPI.Intracomm, f"I{_name.lower()}")
    setattr(Collective, _name, waiting(_blocking, _twin))
for _name in ("allgather", "allgatherv", "alltoall", "alltoallv", "alltoallw"):
    _blocking, _twin = getattr(MPI.Topocomm, f"Neighbor_{_name}"), getattr(MPI.Topocomm, f"Ineighbor_{_name}")
    setattr(Neighbours, _blocking.__name__, waiting(_blocking, _twin))
