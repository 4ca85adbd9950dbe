"""Communicators for calls on ranks of a world: made when they are first asked for, kept by their numbers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from workbench.rank.waiting import abandon, meet, release

if TYPE_CHECKING:
    from mpi4py import MPI

# Tags that the standard guarantees.
_TAGS = 32767


class Communicators:
    """Hands out communicators of some ranks.

    Parameters
    ----------
    base
        Of all ranks. Nobody else sends messages from rank to rank on it; others may use it for collectives.
    name
        Tells it from others in this process that are used at the same time.

    Notes
    -----
    For one thread. Each communicator is made by its own ranks alone, and under a tag of its own, so that one that some
    ranks have given up, or a rank that is dead, is in nobody's way.
    """

    def __init__(self, base: MPI.Intracomm, name: str = "calls") -> None:
        self._base, self._name = base, name
        self._made: dict[int, MPI.Intracomm] = {}

    def get(self, serial: int, ranks: Sequence[int], check: Callable[[], None]) -> MPI.Intracomm:
        """Return the communicator of a number; collective over its ranks when the number is new.

        Parameters
        ----------
        serial
            The same on all ranks, and never used before for other ranks or for one that was abandoned anywhere.
        ranks
            Of the base, in the order of the new communicator; this one is among them.
        check
            Called again and again while it waits; raises to break off.
        """
        release()
        if serial not in self._made:
            ended = self._meet(serial % _TAGS, list(ranks), check)
            everyone = self._base.Get_group()
            group = everyone.Incl(list(ranks))
            made = self._made[serial] = self._of(group, serial)
            group.Free()
            everyone.Free()
            if ended is not None:
                raise ended
            return made
        return self._made[serial]

    def _of(self, group: MPI.Group, serial: int) -> MPI.Intracomm:
        if group.size < self._base.size:
            # Open MPI makes none from a communicator that it knows a dead rank of.
            with contextlib.suppress(NotImplementedError):
                return self._base.Create_from_group(group, f"workbench.{self._name}.{serial}")
        return self._base.Create_group(group, serial % _TAGS)

    def abandon(self, serial: int) -> None:
        """Forget a communicator after a call that has failed; it is not freed, since MPI may still use it."""
        self._made.pop(serial, None)

    def _meet(self, tag: int, ranks: list[int], check: Callable[[], None]) -> BaseException | None:
        """Wait for all ranks, since making a communicator cannot be ended; see `workbench.rank.waiting.meet`."""
        base = self._base
        first, *others = ranks
        if base.rank == first:
            posted = [base.Irecv(bytearray(), other, tag) for other in others]
        else:
            posted = [base.Isend(bytearray(), first, tag), base.Irecv(bytearray(), first, tag)]
        try:
            ended = meet(lambda: all(each.Test() for each in posted), check)
        except BaseException:
            abandon(*posted)
            raise
        if base.rank == first:
            for sent in [base.Isend(bytearray(), other, tag) for other in others]:
                if not sent.Test():
                    abandon(sent)
        return ended
