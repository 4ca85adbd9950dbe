"""What each operation on buffers sends, to which ranks of its communicator: the convention by which it is counted.

It does not depend on how the MPI library moves the bytes. What is sent is counted at the sender alone:

- A message from rank to rank: its bytes to its destination, also where that is the sender; none to ``PROC_NULL``.
- ``Bcast``, ``Scatter``: the root to each other rank what that one gets. ``Gather``, ``Reduce``: each other rank to the
  root what it contributes.
- ``Allgather``, ``Allreduce``: each rank to every other what it contributes. ``Alltoall``, ``Reduce_scatter``: the
  block of that one.
- ``Scan``, ``Exscan``: each rank to every later one what it contributes.
- Operations of neighbours: each rank to each that it has as a neighbour, once for each time that it has.
- Collective operations count no rank's own block. ``Barrier`` sends nothing.
- A block of no bytes is a message too.

Bytes are those of the items, without the gaps that a type may have between them. Of objects they are those of their
pickles; the few that tell how long these are do not count.
"""
# ruff: noqa: ARG001  (arguments are mpi4py's)

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from workbench.metrics.schema import COLLECTIVE, MAKERS, NEIGHBOURS
from workbench.mpi.message_size import item_bytes, nbytes, typed_nbytes, vector_nbytes

if TYPE_CHECKING:
    from workbench.mpi.traffic import Counting

Sent = int | tuple[int, int] | list[tuple[int, int]]
"""Of an operation of all ranks: the bytes that go to every other one, or ranks and the bytes that go to each. Of a
message from rank to rank: its destination, and its bytes. `MPI.PROC_NULL` gets nothing."""

Rule = Callable[..., Sent]
"""Returns of the communicator, and of the arguments of an operation on it, what this rank sends."""

NOTHING: Sent = []

_SENDING = ("send", "bsend", "ssend", "rsend", "sendrecv", "sendrecv_replace")
_COLLECTIVE = {name.lower() for name in (*COLLECTIVE, *NEIGHBOURS, *MAKERS, "Agree", "Shrink")}


def rule(operation: str) -> Rule | None:
    """Return the rule of an operation, also a non-blocking or persistent one; None where buffers send nothing."""
    return _RULES.get(_plain(operation))


def is_collective(operation: str) -> bool:
    """Tell whether all ranks of a communicator take part in an operation, in the same order as in all such."""
    return _plain(operation).lower() in _COLLECTIVE


def _plain(operation: str) -> str:
    return (operation[1:].capitalize() if operation[0] == "I" else operation).removesuffix("_init")


def source_of(operation: str) -> Callable[..., int] | None:
    """Return what tells, of the arguments of a non-blocking or persistent operation, from whom it receives."""
    return _SOURCES.get(operation.lower().removeprefix("i").removesuffix("_init"))


def is_message(operation: str) -> bool:
    """Tell whether an operation sends a message to one rank, which is its second argument; not a persistent one."""
    return operation.lower().removeprefix("i") in _SENDING


def destination(args: tuple[Any, ...], options: dict[str, Any]) -> int:
    """Return to whom such an operation sends."""
    found: int = args[1] if len(args) > 1 else options.get("dest", MPI.PROC_NULL)
    return found


def to_each_other(its: Counting, sizes: Sequence[int]) -> Sent:
    """Return what goes to every other rank, of the bytes for all ranks in their order."""
    return [(rank, size) for rank, size in enumerate(sizes) if rank != its.rank]


def to_later(its: Counting, size: int) -> Sent:
    """Return so many bytes for each rank that comes later."""
    return [(rank, size) for rank in range(its.rank + 1, its.size)]


def to_neighbours(its: Counting, sizes: Sequence[int]) -> Sent:
    """Return what goes to the neighbours, of the bytes for all of them in their order."""
    return [pair for pair in zip(its.neighbours, sizes, strict=False) if pair[0] != its.rank]


def _in_place(buffer: Any) -> bool:
    # for mpi4py nothing is in place, too
    return buffer is None or buffer is MPI.IN_PLACE


# As mpi4py names the arguments; what does not matter is left to * and **.


def _send(_its: Counting, buf: Any, dest: int, *_: Any, **__: Any) -> Sent:
    return dest, nbytes(buf)


def _sendrecv(_its: Counting, sendbuf: Any, dest: int, *_: Any, **__: Any) -> Sent:
    return dest, nbytes(sendbuf)


def _psend(_its: Counting, buf: Any, partitions: int, dest: int, *_: Any, **__: Any) -> Sent:
    return dest, nbytes(buf, partitions) * partitions


def _bcast(its: Counting, buf: Any, root: int = 0, *_: Any, **__: Any) -> Sent:
    return nbytes(buf) if its.rank == root else NOTHING


def _gather(its: Counting, sendbuf: Any, recvbuf: Any, root: int = 0, *_: Any, **__: Any) -> Sent:
    return [(root, nbytes(sendbuf))] if its.rank != root else NOTHING


def _reduce(its: Counting, sendbuf: Any, recvbuf: Any, op: Any = None, root: int = 0, *_: Any, **__: Any) -> Sent:
    return [(root, nbytes(sendbuf))] if its.rank != root else NOTHING


def _scatter(its: Counting, sendbuf: Any, recvbuf: Any, root: int = 0, *_: Any, **__: Any) -> Sent:
    return nbytes(sendbuf, its.size) if its.rank == root else NOTHING


def _scatterv(its: Counting, sendbuf: Any, recvbuf: Any, root: int = 0, *_: Any, **__: Any) -> Sent:
    return to_each_other(its, vector_nbytes(sendbuf, its.size)) if its.rank == root else NOTHING


def _allgather(its: Counting, sendbuf: Any, recvbuf: Any, *_: Any, **__: Any) -> Sent:
    return nbytes(recvbuf, its.size) if _in_place(sendbuf) else nbytes(sendbuf)


def _allgatherv(its: Counting, sendbuf: Any, recvbuf: Any, *_: Any, **__: Any) -> Sent:
    return vector_nbytes(recvbuf, its.size)[its.rank] if _in_place(sendbuf) else nbytes(sendbuf)


def _allreduce(_its: Counting, sendbuf: Any, recvbuf: Any, *_: Any, **__: Any) -> Sent:
    return nbytes(recvbuf)


def _alltoall(its: Counting, sendbuf: Any, recvbuf: Any, *_: Any, **__: Any) -> Sent:
    return nbytes(recvbuf if _in_place(sendbuf) else sendbuf, its.size)


def _alltoallv(its: Counting, sendbuf: Any, recvbuf: Any, *_: Any, **__: Any) -> Sent:
    return to_each_other(its, vector_nbytes(recvbuf if _in_place(sendbuf) else sendbuf, its.size))


def _alltoallw(its: Counting, sendbuf: Any, recvbuf: Any, *_: Any, **__: Any) -> Sent:
    return to_each_other(its, typed_nbytes(recvbuf if _in_place(sendbuf) else sendbuf, its.size))


def _reduce_scatter_block(its: Counting, sendbuf: Any, recvbuf: Any, *_: Any, **__: Any) -> Sent:
    return nbytes(recvbuf, its.size if _in_place(sendbuf) else 1)


def reduce_scatter(its: Counting, sendbuf: Any, recvbuf: Any, recvcounts: Any = None, *_: Any, **__: Any) -> Sent:
    """Return what `Reduce_scatter` sends to each other rank; nothing as long as the counts are not known."""
    if recvcounts is None:
        return NOTHING
    size = item_bytes(recvbuf)
    return to_each_other(its, [int(count) * size for count in recvcounts])


def _scan(its: Counting, sendbuf: Any, recvbuf: Any, *_: Any, **__: Any) -> Sent:
    return to_later(its, nbytes(recvbuf))


def _neighbor_allgather(its: Counting, sendbuf: Any, *_: Any, **__: Any) -> Sent:
    return to_neighbours(its, [nbytes(sendbuf)] * len(its.neighbours))


def _neighbor_alltoall(its: Counting, sendbuf: Any, *_: Any, **__: Any) -> Sent:
    number = len(its.neighbours)
    return to_neighbours(its, [nbytes(sendbuf, number or 1)] * number)


def _neighbor_alltoallv(its: Counting, sendbuf: Any, *_: Any, **__: Any) -> Sent:
    return to_neighbours(its, vector_nbytes(sendbuf, len(its.neighbours)))


def _neighbor_alltoallw(its: Counting, sendbuf: Any, *_: Any, **__: Any) -> Sent:
    return to_neighbours(its, typed_nbytes(sendbuf, len(its.neighbours)))


def _recv(buf: Any = None, source: int = MPI.ANY_SOURCE, *_: Any, **__: Any) -> int:
    return source


def _precv(buf: Any, partitions: int, source: int = MPI.ANY_SOURCE, *_: Any, **__: Any) -> int:
    return source


def _sendrecv_source(
    sendbuf: Any, dest: int, sendtag: int = 0, recvbuf: Any = None, source: int = MPI.ANY_SOURCE, *_: Any, **__: Any
) -> int:
    return source


def _replace_source(buf: Any, dest: int, sendtag: int = 0, source: int = MPI.ANY_SOURCE, *_: Any, **__: Any) -> int:
    return source


_SOURCES: dict[str, Callable[..., int]] = {
    "recv": _recv,
    "precv": _precv,
    "sendrecv": _sendrecv_source,
    "sendrecv_replace": _replace_source,
}

_RULES: dict[str, Rule] = {
    **dict.fromkeys(("Send", "Bsend", "Ssend", "Rsend", "Sendrecv_replace"), _send),
    "Sendrecv": _sendrecv,
    "Psend": _psend,
    "Bcast": _bcast,
    "Gather": _gather,
    "Gatherv": _gather,
    "Scatter": _scatter,
    "Scatterv": _scatterv,
    "Allgather": _allgather,
    "Allgatherv": _allgatherv,
    "Alltoall": _alltoall,
    "Alltoallv": _alltoallv,
    "Alltoallw": _alltoallw,
    "Reduce": _reduce,
    "Allreduce": _allreduce,
    "Reduce_scatter_block": _reduce_scatter_block,
    "Reduce_scatter": reduce_scatter,
    "Scan": _scan,
    "Exscan": _scan,
    "Neighbor_allgather": _neighbor_allgather,
    "Neighbor_allgatherv": _neighbor_allgather,
    "Neighbor_alltoall": _neighbor_alltoall,
    "Neighbor_alltoallv": _neighbor_alltoallv,
    "Neighbor_alltoallw": _neighbor_alltoallw,
}
