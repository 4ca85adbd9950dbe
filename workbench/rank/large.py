"""Large messages: ranks agree, in a way that can be ended, to make the blocking call that MPI is tuned for.

The non-blocking twin of a large operation is some percent slower, and lacks what some networks do in hardware. But a
blocking call that is not made on all ranks alike never returns. So each says what it is about to do; where all say
the same, of arrays that mpi4py and MPI are sure to take, they do it, and otherwise each posts the twin.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI

from workbench.rank.waiting import abandon, complete, meet
from workbench.rank.watched import Watched

# Bytes from which on it pays: to agree takes some percent of the time of such an operation, as the twin does.
LARGE = 4 << 20

_NAMES = ("Bcast", "Reduce", "Allreduce", "Allgather", "Alltoall")
_OPS = (None, MPI.SUM, MPI.PROD, MPI.MAX, MPI.MIN, MPI.LAND, MPI.LOR, MPI.LXOR, MPI.BAND, MPI.BOR, MPI.BXOR)
# Types of elements that each MPI knows.
_CODES = "bBhHiIlLqQfdFD"
# How many numbers say what a rank is about to do.
_WORDS = 6


@dataclass(frozen=True)
class Large:
    """A large operation that a rank is about to take part in."""

    name: str
    """Of the blocking method."""
    arguments: tuple[Any, ...]
    """Of that method."""
    send: Any
    """What the rank sends; None if nothing."""
    receive: Any
    """What it receives into; None if nothing."""
    op: MPI.Op | None = None
    root: int = 0

    def perform(self, comm: Watched) -> None:
        """Make the blocking call where all ranks are sure to make the same, else post its twin; collective."""
        agreed, ended = _agree(comm, self._words(comm.size))
        if agreed:
            getattr(MPI.Intracomm, self.name)(comm, *self.arguments)
            if ended is not None:
                raise ended
        else:
            twin = getattr(MPI.Intracomm, f"I{self.name.lower()}")
            complete(twin(comm, *self.arguments), comm.watch.check)

    def _words(self, size: int) -> tuple[int, ...] | None:
        """Return what is to be the same on all ranks; None where it is not sure that the call is taken as it is."""
        in_place = self.send is MPI.IN_PLACE
        sent = [] if in_place or self.send is None else [self.send]
        received = [] if self.receive is None else [self.receive]
        codes = {_code(array) for array in (*sent, *received)}
        if len(codes) != 1 or None in codes or not all(array.flags.writeable for array in received):
            return None
        if sent and received and np.may_share_memory(sent[0], received[0]):
            return None  # some MPIs refuse it, on this rank alone
        # whole arrays; of what is gathered each sends its part
        parts = size if self.name == "Allgather" else 1
        sizes = {array.size * parts for array in sent} | {array.size for array in received}
        length = sizes.pop()
        if sizes or (self.name == "Alltoall" and length % size):
            return None
        if self.op not in _OPS or self.root not in range(size):
            return None
        # of a reduction to one rank the root alone may say it
        same = in_place and self.name != "Reduce"
        return (_NAMES.index(self.name), codes.pop() or 0, length, int(same), _OPS.index(self.op), self.root)


def _agree(comm: Watched, words: tuple[int, ...] | None) -> tuple[bool, BaseException | None]:
    """Tell whether all ranks say the same words, and what is to be raised after the call that they make then."""
    mine = np.array(words or range(-1, -1 - _WORDS, -1), dtype=np.int64)
    extremes = np.concatenate([mine, -mine])
    request = MPI.Comm.Iallreduce(comm, MPI.IN_PLACE, extremes, MPI.MAX)
    try:
        ended = meet(request.Test, comm.watch.check)
    except BaseException:
        abandon(request)
        raise
    agreed = words is not None and bool((extremes[:_WORDS] == -extremes[_WORDS:]).all())
    if ended is not None and not agreed:
        raise ended
    return agreed, ended


def _code(array: Any) -> int | None:
    """Return the type of an array that is sure to be taken as it is; None for any other."""
    if type(array) is not np.ndarray or not array.flags.c_contiguous:
        return None
    code = array.dtype.char
    return ord(code) if code in _CODES and array.dtype.isnative else None
