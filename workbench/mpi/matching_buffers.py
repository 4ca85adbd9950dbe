"""A check that the buffers of the ranks match in each blocking collective operation, for users who ask for the check.

MPI requires that a rank expects from each rank what this rank sends, and that all ranks name the same operation and
root. So each rank sends each other rank a description of its buffers, and compares the descriptions that arrive with
its own. A rank waits for all others then, also where MPI would let the rank continue.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
from mpi4py import MPI

from workbench.errors import InvalidRequest
from workbench.mpi.message_size import ANY, item_bytes, kind_of, nbytes, typed_nbytes, vector_nbytes
from workbench.mpi.polling import wait

# Different arguments that a message shows.
_CLAUSES = 4
# Type and bytes of a block; `ANY` for a property that is unknown or may differ.
_Block = tuple[int, int]
_NOTHING = ANY, ANY


def _whole(message: Any, size: int) -> list[_Block]:
    return [(kind_of(message), nbytes(message))] * size


def _parts(message: Any, size: int) -> list[_Block]:
    return [(kind_of(message), nbytes(message, size))] * size


def _vector(message: Any, size: int) -> list[_Block]:
    return [(kind_of(message), number) for number in vector_nbytes(message, size)]


def _typed(message: Any, size: int) -> list[_Block]:
    return [(ANY, number) for number in typed_nbytes(message, size)]


_REDUCTIONS = ("Reduce", "Allreduce", "Scan", "Exscan", "Reduce_scatter_block", "Reduce_scatter")
# The blocks of the send and of the receive buffer, one for each rank; whether only the root sends, or receives.
_MOVES: dict[str, tuple[Callable[[Any, int], list[_Block]], Callable[[Any, int], list[_Block]], str]] = {
    "Bcast": (_whole, _whole, "sends"),
    "Scatter": (_parts, _whole, "sends"),
    "Scatterv": (_vector, _whole, "sends"),
    "Gather": (_whole, _parts, "receives"),
    "Gatherv": (_whole, _vector, "receives"),
    "Allgather": (_whole, _parts, ""),
    "Allgatherv": (_whole, _vector, ""),
    "Alltoall": (_parts, _parts, ""),
    "Alltoallv": (_vector, _vector, ""),
    "Alltoallw": (_typed, _typed, ""),
}
COMPARED = (*_REDUCTIONS, *_MOVES)
"""Operations that `compare_each_use` knows."""
_PARAMETERS = {
    "Bcast": ("sendbuf", "root"),
    "Reduce_scatter": ("sendbuf", "recvbuf", "recvcounts", "op"),
    **dict.fromkeys(_REDUCTIONS[:-1], ("sendbuf", "recvbuf", "op", "root")),
}
_OP_NAMES = ("SUM", "PROD", "MAX", "MIN", "LAND", "LOR", "LXOR", "BAND", "BOR", "BXOR", "MAXLOC", "MINLOC")
_OPS = [getattr(MPI, name) for name in _OP_NAMES]


def compare_each_use(
    comm: MPI.Intracomm, check: Callable[[], None], name: str, args: Sequence[Any], options: Mapping[str, Any]
) -> None:
    """Raise InvalidRequest on all ranks if the arguments of a collective operation do not match; collective.

    `check` raises an error once the call was canceled.
    """
    size = comm.size
    given: dict[str, Any] = dict(zip(_PARAMETERS.get(name, ("sendbuf", "recvbuf", "root")), args, strict=False))
    given.update(options)
    rooted = name == "Reduce" or (name in _MOVES and _MOVES[name][2])
    op = given.get("op", MPI.SUM) if name in _REDUCTIONS else None
    root = given.get("root", 0) if rooted else ANY
    sent, expected = _moved(comm, name, given, root) if name in _MOVES else _reduced(comm, name, given)
    first = COMPARED.index(name), _OPS.index(op) if op in _OPS else ANY, root
    told, mine = (
        np.array([(*first, kind if number else ANY, number) for kind, number in blocks]) for blocks in (sent, expected)
    )
    heard = np.empty_like(told)
    wait(MPI.Comm.Ialltoall(comm, told, heard), check, buffers=(told, heard))
    differ = ((heard != mine) & (heard != ANY) & (mine != ANY)).any(axis=1)
    other = int(differ.argmax())
    found = np.array([other if differ[other] else -1, *heard[other], *mine[other]])
    of_ranks = np.empty((size, len(found)), found.dtype)
    wait(MPI.Comm.Iallgather(comm, found, of_ranks), check, buffers=(found, of_ranks))
    if (of_ranks[:, 0] >= 0).any():
        raise InvalidRequest(_words(of_ranks.tolist()), given=name)


def _reduced(comm: MPI.Intracomm, name: str, given: Mapping[str, Any]) -> tuple[list[_Block], list[_Block]]:
    """Return what this rank passes to a reduction, and what the others must pass."""
    in_place = _is_in_place(given.get("sendbuf"))
    buffer = given.get("recvbuf") if in_place or name == "Reduce_scatter_block" else given.get("sendbuf")
    # In place the buffer of Reduce_scatter_block has the parts of all ranks.
    passed = (_parts if in_place and name == "Reduce_scatter_block" else _whole)(buffer, comm.size)
    if (counts := given.get("recvcounts")) is None:
        return passed, passed
    if len(counts) != comm.size:  # mpi4py refuses this
        return [_NOTHING] * comm.size, [_NOTHING] * comm.size
    # Each rank must know the count of each other one.
    known = [(passed[0][0], int(count) * item_bytes(buffer)) for count in counts]
    return known, [known[comm.rank]] * comm.size


def _moved(comm: MPI.Intracomm, name: str, given: Mapping[str, Any], root: int) -> tuple[list[_Block], list[_Block]]:
    """Return what this rank sends to each rank, and what the rank expects from each."""
    size, rank = comm.size, comm.rank
    send, receive, alone = _MOVES[name]
    sendbuf = given.get("sendbuf", given.get("buf"))
    recvbuf = sendbuf if name == "Bcast" else given.get("recvbuf")
    sent, expected = send(sendbuf, size), receive(recvbuf, size)
    if _is_in_place(sendbuf):
        sent = [expected[rank]] * size if send is _whole else expected
    elif _is_in_place(recvbuf):
        expected = [sent[rank]] * size
    if alone:
        to_root = [other == root for other in range(size)]
        with_all = [rank == root] * size
        senders, receivers = (with_all, to_root) if alone == "sends" else (to_root, with_all)
        sent = [block if does else _NOTHING for block, does in zip(sent, senders, strict=True)]
        expected = [block if does else _NOTHING for block, does in zip(expected, receivers, strict=True)]
    return sent, expected


def _is_in_place(message: Any) -> bool:
    return message is None or message is MPI.IN_PLACE  # mpi4py treats None as in place


def _words(of_ranks: list[list[int]]) -> str:
    """Return the message about the differences between the descriptions that ranks have received and expected."""
    passed: dict[str, set[int]] = {}
    for rank, (other, *rows) in enumerate(of_ranks):
        if other >= 0:
            heard, mine = rows[: len(rows) // 2], rows[len(rows) // 2 :]
            passed.setdefault(_call(heard, f" for rank {rank}"), set()).add(other)
            passed.setdefault(_call(mine, f" from rank {other}"), set()).add(rank)
    return different(
        {text: sorted(ranks) for text, ranks in passed.items()},
        "Use the same operation, root and op on all ranks, and expect the type and number of elements that are sent, "
        "for example by astype(float).",
    )


def _call(row: list[int], partner: str) -> str:
    """Return text about what a rank has passed to an operation."""
    number, op, root, kind, size = row
    name = COMPARED[number]
    options = ([f"op={_OP_NAMES[op]}"] if op != ANY else []) + ([f"root={root}"] if root != ANY else [])
    text = f"{name}({', '.join(options)})" if options else name
    if size == ANY:
        return text
    dtype = dtype_of(kind)
    amount = f"{size} bytes" if dtype is None or size % dtype.itemsize else f"{size // dtype.itemsize} {dtype}"
    return f"{text} of {amount}{partner if name in _MOVES else ''}"


def different(passed: Mapping[str, Sequence[int]], remedy: str) -> str:
    """Return the message about what ranks have passed to an operation, by the words for this."""
    shown = [
        f"{text} on rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks[:8]))}{', ...' * (len(ranks) > 8)}"
        for text, ranks in islice(passed.items(), _CLAUSES)
    ]
    found = "; ".join([*shown, "..."] if len(passed) > _CLAUSES else shown)
    end = "" if found.endswith("...") else "."
    return f"the ranks pass different arrays to a collective operation: {found}{end} {remedy}"


def dtype_of(kind: int) -> np.dtype[Any] | None:
    """Return the type with a number of `message_size.kind_of`, or None if the type is unknown."""
    return None if kind == ANY else np.dtype(f"{chr(kind >> 16)}{kind & 0xFFFF}")
