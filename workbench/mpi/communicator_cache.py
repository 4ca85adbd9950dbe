"""Communicators for calls on ranks of a world: made when they are first asked for, kept by their numbers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from workbench.errors import CollectiveFailed
from workbench.hints import AGAIN
from workbench.mpi.polling import Deadline, barrier_or_cancel, is_over, keep_alive, poll, release, wait, withdraw

if TYPE_CHECKING:
    from mpi4py import MPI

# Seconds for messages that were sent to arrive: less than the head waits, or the next call would wait for the rest.
_SETTLE = 1.0
# Tags that the standard guarantees.
_TAGS = 32767


class CommunicatorCache:
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
            self._meet(serial % _TAGS, list(ranks), check)
            everyone = self._base.Get_group()
            group = everyone.Incl(list(ranks))
            try:
                made = self._made[serial] = self._of(group, serial)
            finally:
                group.Free()
                everyone.Free()
            check()
            return made
        return self._made[serial]

    def _of(self, group: MPI.Group, serial: int) -> MPI.Intracomm:
        from mpi4py import MPI

        if group.size < self._base.size:
            # Open MPI makes none from a communicator that it knows a dead rank of.
            with contextlib.suppress(NotImplementedError):
                return self._base.Create_from_group(group, f"workbench.{self._name}.{serial}")
        try:
            return self._base.Create_group(group, serial % _TAGS)
        except MPI.Exception as error:
            if error.Get_error_class() != MPI.ERR_OTHER:
                raise
            raise CollectiveFailed(
                f"MPI made no communicator for the call: {error}.",
                hint=("MPICH has about 2,000, and each call that failed keeps those that it had. ", *AGAIN),
            ) from error

    def settle(
        self, serial: int, mark: bytes, left: Sequence[MPI.Request], offspring: Sequence[MPI.Intracomm] = ()
    ) -> bool:
        """Receive what a call that has succeeded sent and nobody received; collective over the ranks of a number.

        Messages of one rank to another do not overtake each other, so each rank receives poll the mark of each.

        Parameters
        ----------
        mark
            The same on all ranks, and different from all messages.
        left
            Requests that were not complete at the end of the call.
        offspring
            What was made from the communicator.

        Returns
        -------
        settled : bool
            Whether this rank has nothing left on the communicators.
        """
        from mpi4py import MPI

        comms = [self._made[serial], *offspring]
        within = Deadline(_SETTLE, "messages of a call did not arrive")
        sent: list[MPI.Request] = []
        try:
            for comm in comms:
                comm.Set_errhandler(MPI.ERRORS_RETURN)
                sent += [comm.Isend([mark, MPI.BYTE], other) for other in range(comm.size)]
            for comm in comms:
                for source in range(comm.size):
                    while _received(comm, source, within.check) != mark:
                        pass
            poll(lambda: all(map(is_over, (*sent, *left))), within.check)
        except (MPI.Exception, CollectiveFailed):
            keep_alive(*sent)
            self.abandon(serial)
            return False
        return True

    def abandon(self, serial: int) -> None:
        """Forget a communicator after a call that has failed; it is never freed.

        Notes
        -----
        What a rank has sent of a collective, before another rank failed, stays with the other rank, and no operation
        of MPI takes it away. MPICH gives the context of a communicator that is freed to the next one, which would
        receive what was left. So each costs about 10 kB of memory, and one of the 2,000 communicators of MPICH.
        """
        self._made.pop(serial, None)

    def _meet(self, tag: int, ranks: list[int], check: Callable[[], None]) -> None:
        """Wait for all ranks as `barrier_or_cancel` of `polling`, since making a communicator cannot be ended."""
        meeting = _First(self._base, tag, ranks) if self._base.rank == ranks[0] else _Other(self._base, tag, ranks)
        try:
            barrier_or_cancel(meeting.arrived, meeting.vote, check)
        finally:
            meeting.leave()


def _received(comm: MPI.Intracomm, source: int, check: Callable[[], None]) -> bytearray:
    """Return the bytes of the next message from a rank, of whatever tag and type."""
    from mpi4py import MPI

    status = MPI.Status()
    message = cast("MPI.Message", poll(lambda: comm.Improbe(source, MPI.ANY_TAG, status), check))
    received = bytearray(status.Get_count(MPI.BYTE))
    wait(message.Irecv([received, MPI.BYTE]), check, held=received)
    return received


class _Meeting:
    """One rank among those that meet: all tell the first that they are here, and it asks them to vote."""

    def __init__(self, base: MPI.Intracomm, tag: int, ranks: list[int]) -> None:
        self._base, self._tag, self._ranks = base, tag, ranks
        self._sent: list[MPI.Request] = []
        self._answers: list[bytearray] = []
        self._receives: list[MPI.Request] = []

    def _tell(self, yes: bool, ranks: Sequence[int]) -> None:
        self._sent += [self._base.Isend(bytearray([yes]), other, self._tag) for other in ranks]

    def _ask(self, ranks: Sequence[int]) -> None:
        self._answers = [bytearray(1) for _ in ranks]
        self._receives = [self._base.Irecv(*its, self._tag) for its in zip(self._answers, ranks, strict=True)]

    def _answer(self) -> bool | None:
        """Return whether all that were asked have answered yes; None as long as one has not answered."""
        return all(answer[0] for answer in self._answers) if all(its.Test() for its in self._receives) else None

    def _no(self) -> bool | None:
        """Return that nobody makes the call, when those who wait have been told."""
        return False if all(its.Test() for its in self._sent) else None

    def leave(self) -> None:
        """Give up what is outstanding."""
        for its in self._receives:
            withdraw(its)
        keep_alive(*self._sent)


class _First(_Meeting):
    def __init__(self, base: MPI.Intracomm, tag: int, ranks: list[int]) -> None:
        super().__init__(base, tag, ranks)
        self._others = ranks[1:]
        self._ask(self._others)

    def arrived(self) -> bool:
        return self._answer() is not None

    def vote(self, yes: bool) -> Callable[[], bool | None]:
        self._tell(yes, self._others)
        if not yes:
            return self._no
        self._ask(self._others)
        return self._verdict

    def _verdict(self) -> bool | None:
        found = self._answer()
        if found is not None:
            self._tell(found, self._others)
            self._others = []  # they know
        return found


class _Other(_Meeting):
    def __init__(self, base: MPI.Intracomm, tag: int, ranks: list[int]) -> None:
        super().__init__(base, tag, ranks)
        self._first = ranks[:1]
        self._tell(True, self._first)
        self._ask(self._first)

    def arrived(self) -> bool:
        return self._answer() is not None

    def vote(self, yes: bool) -> Callable[[], bool | None]:
        if yes and not self._answer():
            return lambda: False  # the first rank has left
        self._tell(yes, self._first)
        if not yes:
            return self._no
        self._ask(self._first)
        return self._answer
