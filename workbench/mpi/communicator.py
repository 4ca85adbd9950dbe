"""The communicator that calls and cells are given: mpi4py's own, but that it can be ended from outside."""

from __future__ import annotations

from mpi4py import MPI

from workbench.mpi.collectives import Collectives
from workbench.mpi.derived import DerivedCommunicators, meeting
from workbench.mpi.nonblocking import NonBlocking, NonBlockingNeighbours
from workbench.mpi.object_collectives import ObjectNeighbourCollectives
from workbench.mpi.object_reductions import ObjectReductions
from workbench.mpi.point_to_point import PointToPoint


class Communicator(PointToPoint, Collectives, ObjectReductions, NonBlocking, DerivedCommunicators):
    """A communicator of mpi4py whose operations can be ended from outside.

    Parameters
    ----------
    comm
        Whose handle it takes over.
    watch
        Knows where the operations are, and ends them. What is made from this communicator, by `Dup`, `Split` and so
        on, is a `Communicator` that shares it.
    key
        Tells this communicator from all others of a cluster in what is told of its meetings; less than 2**63, and the
        same on all its ranks. What is made from it has keys that are made from this one.

    Notes
    -----
    Each blocking operation posts its non-blocking twin and tests it, so that `CallState.end` ends it on this rank, by
    `CallCancelled`; the communicator is of no use after that. Operations without a twin, as `Split`, wait for all ranks
    first, in a way that can be ended. What cannot be ended: `Create_group`, `Create_intercomm`, `Spawn` and what they
    are made of, intercommunicators; windows and files; ``MPI.Request.Waitall`` of mpi4py's own class
    (see `workbench.mpi.request.Request`); and what C code does with the handle.

    Where the watch has counters each operation is counted, and what it sends, by the convention of
    `workbench.mpi.traffic`; but for `Create_group` nothing of what cannot be ended is.
    """


class _Topology(ObjectNeighbourCollectives, NonBlockingNeighbours, Communicator):
    """What communicators with a topology have in common."""


class CartesianCommunicator(_Topology, MPI.Cartcomm):
    """A `Communicator` whose ranks form a grid."""

    Sub = meeting(MPI.Cartcomm.Sub)


class GraphCommunicator(_Topology, MPI.Graphcomm):
    """A `Communicator` whose ranks form a graph that all of them know."""


class DistgraphCommunicator(_Topology, MPI.Distgraphcomm):
    """A `Communicator` whose ranks form a graph of which each knows its neighbours."""


DerivedCommunicators._kinds.update(  # noqa: SLF001  (they are one family)
    {
        MPI.Intracomm: Communicator,
        MPI.Cartcomm: CartesianCommunicator,
        MPI.Graphcomm: GraphCommunicator,
        MPI.Distgraphcomm: DistgraphCommunicator,
    }
)
