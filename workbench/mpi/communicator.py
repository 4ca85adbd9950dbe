"""The communicator of SPMD calls and cells: mpi4py's, with operations that can be canceled.

The requests of its non-blocking operations have cancelable waits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from workbench.mpi.collectives import Collectives, lengths
from workbench.mpi.counters import COLLECTIVE, NEIGHBORS
from workbench.mpi.derived import DerivedCommunicators, after_barrier
from workbench.mpi.objects import ObjectNeighborCollectives, ObjectReductions
from workbench.mpi.operation import InterruptibleComm, named, posting
from workbench.mpi.point_to_point import PointToPoint, pickled
from workbench.mpi.request import Prequest, cancelable
from workbench.mpi.traffic import destination, is_message, source_of, traffic_rule


class NonBlocking(InterruptibleComm):
    """Non-blocking and persistent operations of all communicators."""


class NonBlockingNeighbors(InterruptibleComm, MPI.Topocomm):
    """Non-blocking and persistent operations of neighbors in a topology."""


# Operations for which mpi4py's requests do not hold the buffers.
_NOT_HELD = ("allgatherv", "reduce", "allreduce", "reduce_scatter_block", "reduce_scatter", "scan", "exscan")


def _posting(method: Callable[..., MPI.Request]) -> Callable[..., MPI.Request]:
    # Persistent messages are not in the sums of `Pairs`.
    maybe_modified = method.__name__.endswith(("end_init", "ecv_init"))
    holds = method.__name__.lower().removeprefix("i").removesuffix("_init") not in _NOT_HELD
    receives = method.__name__.lower() in {"irecv", "recv_init"}
    is_sent, sends, source = is_message(method.__name__), traffic_rule(method.__name__), source_of(method.__name__)

    @posting
    @functools.wraps(method)
    def post(self: InterruptibleComm, *args: Any, **options: Any) -> MPI.Request:
        if is_sent:
            self.watch.messages += self.sent_pairs[destination(args, options)]
        self.watch.maybe_modified |= maybe_modified
        posted = cancelable(method(self, *args, **options), self.watch, None if holds else (args, options))
        if isinstance(posted, Prequest):
            posted.starting = lambda name: start(self, name, args, options)
            posted.receives = receives
        elif source is not None:
            posted.receives = receives
            posted.count_message(self.received_pairs, rank := source(*args, **options))
            self._count_received(rank)
        return posted

    def start(self: InterruptibleComm, name: str, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        if sends is not None:
            self._count_sent(name, lambda counter: sends(counter, *args, **options))
        if source is not None:
            self._count_received(source(*args, **options))

    return post


def _pickling(
    method: Callable[..., MPI.Request], counterpart: Callable[..., MPI.Request]
) -> Callable[..., MPI.Request]:
    """Return the operation as one that posts that of a buffer with the pickled object."""
    name = method.__name__

    @posting
    @functools.wraps(method)
    def post(self: InterruptibleComm, obj: Any, dest: int, tag: int = 0) -> MPI.Request:
        data = pickled(obj, dest)
        self.watch.messages += self.sent_pairs[dest]
        request = cancelable(counterpart(self, [data, MPI.BYTE], dest, tag), self.watch)
        self._count_sent(name, lambda _: (dest, len(data)))
        return request

    return post


def _with_lengths(method: Callable[..., MPI.Request]) -> Callable[..., MPI.Request]:
    """Return a reduce-scatter that gathers the receive counts of the ranks if they are omitted."""

    @functools.wraps(method)
    def post(
        self: InterruptibleComm, sendbuf: Any, recvbuf: Any, recvcounts: Any = None, *args: Any, **options: Any
    ) -> MPI.Request:
        self.watch.check()
        if recvcounts is None:
            recvcounts = lengths(self, sendbuf, recvbuf)
        return method(self, sendbuf, recvbuf, recvcounts, *args, **options)

    named(post, method.__name__)
    return post


for _name in (
    *(f"I{name.lower()}" for name in COLLECTIVE),
    *(f"{name}_init" for name in COLLECTIVE),
    "Isend", "Ibsend", "Issend", "Irsend", "Irecv", "Isendrecv", "Isendrecv_replace", "Iflush_buffer", "Iagree",
    "Send_init", "Bsend_init", "Ssend_init", "Rsend_init", "Recv_init", "Psend_init", "Precv_init",
    "irecv",
):  # fmt: skip
    setattr(NonBlocking, _name, _posting(getattr(MPI.Intracomm, _name)))
for _name in ("isend", "ibsend", "issend"):
    setattr(NonBlocking, _name, _pickling(getattr(MPI.Comm, _name), getattr(MPI.Comm, _name.capitalize())))
for _name in ("Ireduce_scatter", "Reduce_scatter_init"):
    setattr(NonBlocking, _name, _with_lengths(getattr(NonBlocking, _name)))
for _name in (*(f"I{name.lower()}" for name in NEIGHBORS), *(f"{name}_init" for name in NEIGHBORS)):
    setattr(NonBlockingNeighbors, _name, _posting(getattr(MPI.Topocomm, _name)))


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
