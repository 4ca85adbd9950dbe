"""Detects whether all messages and collective operations were received, without a list of the pairs of ranks."""

from __future__ import annotations

import functools
from collections.abc import Callable

from mpi4py import MPI

# Below 2**28: Python adds larger numbers more slowly.
_LARGEST = 0xFFFFFFF


@functools.cache
def collective_number(rank: int, size: int) -> int:
    """Return the number that a rank of a communicator adds for each collective operation.

    The sum of all ranks is zero, also of several operations, if all have made as many.
    """
    if rank == 0:
        return -sum(collective_number(other, size) for other in range(1, size))
    # Three numbers, since the hashes of two are those of `Pairs`.
    return hash((rank, size, size)) & _LARGEST


class Pairs(dict[int, int]):
    """By rank: a number for the pair of that rank and this one; 0 for `MPI.PROC_NULL`.

    Parameters
    ----------
    pair
        Returns the sender and the receiver, as ranks of their communicator, for the rank of the other.

    Notes
    -----
    The sender adds the number of its pair and the receiver subtracts it, so the sum of all ranks is zero if each
    message was received. The numbers are hashes, so two lost messages do not cancel out.
    """

    def __init__(self, pair: Callable[[int], tuple[int, int]]) -> None:
        super().__init__({MPI.PROC_NULL: 0})
        self._pair = pair

    def __missing__(self, rank: int) -> int:
        """Return the number of a rank at its first use."""
        number = self[rank] = hash(self._pair(rank)) & _LARGEST
        return number
