"""The communicator of SPMD calls and cells: mpi4py's, with operations that can be canceled."""

from __future__ import annotations

from mpi4py import MPI

from workbench.mpi.collectives import Collectives
from workbench.mpi.derived import DerivedCommunicators, after_barrier
from workbench.mpi.nonblocking import NonBlocking, NonBlockingNeighbors
from workbench.mpi.objects import ObjectNeighborCollectives, ObjectReductions
from workbench.mpi.point_to_point import PointToPoint


class Communicator(PointToPoint, Collectives, ObjectReductions, NonBlocking, DerivedCommunicators):
    """A communicator of mpi4py whose operations can be canceled from another thread.

    Parameters
    ----------
    comm
        The communicator whose handle this one takes over.
    watch
        State of the call. Communicators derived from this one, with `Dup`, `Split` and so on, share the state.
    key
        Identity of this communicator in synchronizations; less than 2**63, and the same on all ranks. Derived
        communicators have keys derived from this one.

    Notes
    -----
    Each blocking operation posts its non-blocking counterpart and tests it, so that `CallState.end` cancels the
    operation on this rank with `CallCancelled`; after that the communicator must not be used. Operations without a
    counterpart, like `Split`, first wait for all ranks in a cancelable barrier. Not cancelable: `Create_group`,
    `Create_intercomm`, `Spawn` and intercommunicators; windows and files; ``MPI.Request.Waitall`` of mpi4py's class
    (see `workbench.mpi.request.Request`); and C code that uses the handle.

    If the state has counters, each operation and its traffic are counted by the convention of
    `workbench.mpi.traffic`; of the operations that are not cancelable, only `Create_group`.
    """


class _Topology(ObjectNeighborCollectives, NonBlockingNeighbors, Communicator):
    """Base of communicators with a topology."""


class CartesianCommunicator(_Topology, MPI.Cartcomm):
    """A `Communicator` whose ranks form a grid."""

    Sub = after_barrier(MPI.Cartcomm.Sub)


class GraphCommunicator(_Topology, MPI.Graphcomm):
    """A `Communicator` whose ranks form a graph that every rank knows."""


class DistgraphCommunicator(_Topology, MPI.Distgraphcomm):
    """A `Communicator` whose ranks form a graph, in which each rank knows only neighbors."""


DerivedCommunicators._kinds.update(  # noqa: SLF001  (the classes of one module, split)
    {
        MPI.Intracomm: Communicator,
        MPI.Cartcomm: CartesianCommunicator,
        MPI.Graphcomm: GraphCommunicator,
        MPI.Distgraphcomm: DistgraphCommunicator,
    }
)
