"""Non-blocking operations: they return requests whose waiting can be ended from outside."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from workbench.rank.request import watched
from workbench.rank.watched import Watched, messages_of, named


class Posting(Watched):
    """Non-blocking and persistent operations of all communicators."""


class PostingNeighbours(Watched, MPI.Topocomm):
    """Non-blocking and persistent operations of the neighbours in a topology."""


# Operations of which mpi4py's requests hold no buffers.
_NOT_HELD = ("allgatherv", "reduce", "allreduce", "reduce_scatter_block", "reduce_scatter", "scan", "exscan")


def _posting(method: Callable[..., MPI.Request]) -> Callable[..., MPI.Request]:
    messages = messages_of(method.__name__)
    # What is sent whenever it is started is not counted.
    doubtful = method.__name__.endswith(("end_init", "ecv_init"))
    holds = method.__name__.lower().removeprefix("i").removesuffix("_init") not in _NOT_HELD

    @functools.wraps(method)
    def post(self: Watched, *args: Any, **options: Any) -> MPI.Request:
        self.watch.check()
        self.watch.messages += messages
        self.watch.doubtful |= doubtful
        return watched(method(self, *args, **options), self.watch, None if holds else (args, options))

    named(post, method.__name__)
    return post


_COLLECTIVE = (
    "Barrier", "Bcast", "Gather", "Gatherv", "Scatter", "Scatterv", "Allgather", "Allgatherv", "Alltoall",
    "Alltoallv", "Alltoallw", "Reduce", "Allreduce", "Reduce_scatter_block", "Reduce_scatter", "Scan", "Exscan",
)  # fmt: skip
_NEIGHBOURS = tuple(f"Neighbor_{name}" for name in ("allgather", "allgatherv", "alltoall", "alltoallv", "alltoallw"))

for _name in (
    *(f"I{name.lower()}" for name in _COLLECTIVE),
    *(f"{name}_init" for name in _COLLECTIVE),
    "Isend", "Ibsend", "Issend", "Irsend", "Irecv", "Isendrecv", "Isendrecv_replace", "Iflush_buffer", "Iagree",
    "Send_init", "Bsend_init", "Ssend_init", "Rsend_init", "Recv_init", "Psend_init", "Precv_init",
    "isend", "ibsend", "issend", "irecv",
):  # fmt: skip
    setattr(Posting, _name, _posting(getattr(MPI.Intracomm, _name)))
for _name in (*(f"I{name.lower()}" for name in _NEIGHBOURS), *(f"{name}_init" for name in _NEIGHBOURS)):
    setattr(PostingNeighbours, _name, _posting(getattr(MPI.Topocomm, _name)))
