"""Communicators for calls on ranks of a world: made when they are first asked for, kept by their numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mpi4py import MPI

from workbench.rank.waiting import complete

# Numbers of messages that the standard guarantees.
_TAGS = 32767


class Communicators:
    """Hands out communicators of some ranks.

    Parameters
    ----------
    base
        Never used for messages, only for making others.

    Notes
    -----
    For one thread.
    """

    def __init__(self, base: MPI.Intracomm) -> None:
        self._base = base
        self._made: dict[int, MPI.Intracomm] = {}

    def get(self, serial: int, ranks: Sequence[int], check: Callable[[], None]) -> MPI.Intracomm:
        """Return the communicator of this number; collective over its ranks when the number is new.

        Parameters
        ----------
        serial
            The same on all ranks.
        ranks
            Of the base, in the order of the new communicator.
        check
            Is called while it waits; raises to break off.
        """
        if serial not in self._made:
            if list(ranks) == list(range(self._base.size)):
                made, request = self._base.Idup()
                complete(request, check)
            else:
                group = self._base.Get_group().Incl(list(ranks))
                made = self._base.Create_group(group, serial % _TAGS)
                group.Free()
            self._made[serial] = made
        return self._made[serial]

    def abandon(self, serial: int) -> None:
        """Do not hand out this one any more; it is not freed, since requests on it may be outstanding."""
        self._made.pop(serial, None)
