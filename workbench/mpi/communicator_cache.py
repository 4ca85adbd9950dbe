"""A cache of the communicators for SPMD calls on ranks of a world, by their ids."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from workbench.errors import CollectiveFailed
from workbench.hints import AGAIN
from workbench.mpi.polling import Deadline, barrier_or_cancel, is_over, keep_alive, poll, release, wait, withdraw

if TYPE_CHECKING:
    from mpi4py import MPI

# Seconds for sent messages to arrive: shorter than the wait of the head, so that the next call is not delayed.
_SETTLE_TIMEOUT = 1.0
# Seconds for all ranks to return from the creation of a communicator during which a rank of the base may have died.
_AGREE_TIMEOUT = 30.0
# Replies of a rank that agrees: nothing has failed there, or something has.
_YES, _FAILED = 1, 2
# Number of tags that the MPI standard guarantees; an even number.
_TAGS = 32766


class CommunicatorCache:
    """Creates and keeps communicators of some ranks; for one thread.

    Parameters
    ----------
    base
        Communicator of all ranks. Other code may use it for collectives, but not for point-to-point messages.
    name
        Unique among the caches of this process.

    Notes
    -----
    Only the ranks of a communicator create it, with a separate tag, so neither a communicator that some ranks have
    abandoned nor a dead rank disturbs others.
    """

    def __init__(self, base: MPI.Intracomm, name: str = "calls") -> None:
        self._base, self._name = base, name
        self._communicators: dict[int, MPI.Intracomm] = {}

    def get(self, communicator_id: int, ranks: Sequence[int], check: Callable[[], None]) -> MPI.Intracomm:
        """Return the communicator with an id; collective over its ranks when the id is new.

        Parameters
        ----------
        communicator_id
            The same on all ranks, and never used before for other ranks or for an abandoned communicator.
        ranks
            Ranks of the base in the order of the new communicator, with this rank among them.
        check
            Called repeatedly during a wait; raises to cancel the wait.
        """
        release()
        if communicator_id not in self._communicators:
            everyone = self._base.Get_group()
            group = everyone.Incl(list(ranks))
            try:
                self._communicators[communicator_id] = self._created(group, communicator_id, list(ranks), check)
            finally:
                group.Free()
                everyone.Free()
            check()
        return self._communicators[communicator_id]

    def _created(
        self, group: MPI.Group, communicator_id: int, ranks: list[int], check: Callable[[], None]
    ) -> MPI.Intracomm:
        """Create a communicator of some ranks of the base, also if another rank of the base is dead, or ends now.

        Open MPI creates none by `Create_group` from a communicator with a rank that it knows to be dead. So if that
        fails on one rank, all ranks create the communicator by `Create_from_group`. This way is avoided otherwise,
        because to revoke its communicator on one rank can revoke another communicator on another rank.
        """
        # Even, because Open MPI sends messages with this tag, which the second barrier must not receive.
        tag, knows_dead = 2 * communicator_id % _TAGS, _knows_dead_rank(self._base)
        any_failed = self._barrier(tag, ranks, check, lambda: _knows_dead_rank(self._base))
        if knows_dead is None or group.size == self._base.size:
            return self._create_group(group, tag)
        if not any_failed:
            communicator = self._unless_a_rank_ends(group, tag)
            late = Deadline(_AGREE_TIMEOUT, "a rank did not return from MPI's creation of a communicator")

            def check_both() -> None:
                check()
                late.check()

            any_failed = self._barrier(tag + 1, ranks, check_both, lambda: communicator is None)
            if communicator is not None and not any_failed:
                return communicator
        with contextlib.suppress(NotImplementedError):
            return self._base.Create_from_group(group, f"workbench.{self._name}.{communicator_id}")
        return self._create_group(group, tag)

    def _unless_a_rank_ends(self, group: MPI.Group, tag: int) -> MPI.Intracomm | None:
        """Create a communicator; return None if MPI does not, since a rank of the base has ended."""
        from mpi4py import MPI

        try:
            return self._create_group(group, tag)
        except MPI.Exception as error:
            if error.Get_error_class() != MPI.ERR_PROC_FAILED:
                raise
            return None

    def _create_group(self, group: MPI.Group, tag: int) -> MPI.Intracomm:
        from mpi4py import MPI

        try:
            return self._base.Create_group(group, tag)
        except MPI.Exception as error:
            if error.Get_error_class() != MPI.ERR_OTHER:
                raise
            raise CollectiveFailed(
                f"MPI could not create a communicator for the call: {error}.",
                hint=("MPICH has about 2,000 communicators, and each failed call keeps one. ", *AGAIN),
            ) from error

    def settle(
        self,
        communicator_id: int,
        mark: bytes,
        left: Sequence[MPI.Request],
        derived: Sequence[MPI.Intracomm] = (),
        collective_counts: Sequence[int] = (),
    ) -> bool:
        """Receive the messages that a successful call has sent and not received; collective over its ranks.

        Messages between two ranks do not overtake each other, so each rank receives until the mark of every rank.

        Parameters
        ----------
        mark
            The same on all ranks, and different from all messages.
        left
            Requests that were not complete at the end of the call.
        derived
            Communicators derived from the communicator of the call.
        collective_counts
            Collective operations of this rank on the communicator of the call, and on each of `derived`. Default: as
            many on all ranks.

        Returns
        -------
        settled : bool
            Whether no message of this rank is left on the communicators. If the ranks have made different numbers of
            collective operations, parts of these are left, which no operation of MPI can receive.
        """
        from mpi4py import MPI

        comms = [self._communicators[communicator_id], *derived]
        marks = [b"%b %d" % (mark, count) for count in collective_counts or [0] * len(comms)]
        deadline = Deadline(_SETTLE_TIMEOUT, "messages of a call did not arrive")
        sent: list[MPI.Request] = []
        try:
            for comm, own in zip(comms, marks, strict=True):
                comm.Set_errhandler(MPI.ERRORS_RETURN)
                sent += [comm.Isend([own, MPI.BYTE], other) for other in range(comm.size)]
            for comm, own in zip(comms, marks, strict=True):
                for source in range(comm.size):
                    _receive_until_mark(comm, source, mark, own, deadline.check)
            poll(lambda: all(map(is_over, (*sent, *left))), deadline.check)
            for comm in comms:
                _detach_buffer(comm, deadline.check)
        except (MPI.Exception, CollectiveFailed):
            keep_alive(*sent)
            self.discard(communicator_id)
            return False
        return True

    def discard(self, communicator_id: int) -> None:
        """Drop a communicator after a failed call, without freeing it.

        Messages of a collective that a rank has sent before another rank failed stay at the other rank, and no MPI
        operation removes them. MPICH reuses the context of a freed communicator for the next one, which would receive
        these messages. So each failed call costs about 10 kB of memory, and one of the 2,000 communicators of MPICH.
        """
        self._communicators.pop(communicator_id, None)

    def _barrier(self, tag: int, ranks: list[int], check: Callable[[], None], failed: Callable[[], object]) -> bool:
        """Run `barrier_or_cancel` with all ranks, because the creation of a communicator cannot be canceled.

        Returns
        -------
        any_failed : bool
            Whether `failed` returns a true value on one of the ranks: the same on all ranks.
        """
        kind = _Root if self._base.rank == ranks[0] else _Other
        side = kind(self._base, tag, ranks, failed)
        try:
            barrier_or_cancel(side.arrived, side.vote, check)
        finally:
            side.leave()
        return side.any_failed


def _detach_buffer(comm: MPI.Intracomm, check: Callable[[], None]) -> None:
    """Detach the buffer that a call may have attached to a communicator; it has none before MPI 4.1."""
    with contextlib.suppress(NotImplementedError):
        wait(comm.Iflush_buffer(), check)
        comm.Detach_buffer()


def _receive_until_mark(comm: MPI.Intracomm, source: int, mark: bytes, own: bytes, check: Callable[[], None]) -> None:
    """Receive all messages from a rank until its mark; raise CollectiveFailed if that differs from the own one."""
    while (received := _received(comm, source, check)) != own:
        if received.startswith(mark):
            raise CollectiveFailed("the ranks have made different numbers of collective operations")


def _received(comm: MPI.Intracomm, source: int, check: Callable[[], None]) -> bytearray:
    """Return the bytes of the next message from a rank, with any tag and type."""
    from mpi4py import MPI

    status = MPI.Status()
    message = cast("MPI.Message", poll(lambda: comm.Improbe(source, MPI.ANY_TAG, status), check))
    received = bytearray(status.Get_count(MPI.BYTE))
    wait(message.Irecv([received, MPI.BYTE]), check, buffers=received)
    return received


def _knows_dead_rank(comm: MPI.Intracomm) -> bool | None:
    """Return whether this rank knows of a dead rank of a communicator; None if MPI cannot report that."""
    from mpi4py import MPI

    try:
        failed = comm.Get_failed()
    except (NotImplementedError, MPI.Exception):
        return None
    try:
        return failed.size > 0
    finally:
        failed.Free()


class _BarrierSide:
    """One rank in the barrier: all ranks report their arrival to the first rank, which requests their votes."""

    def __init__(self, base: MPI.Intracomm, tag: int, ranks: list[int], failed: Callable[[], object]) -> None:
        self._base, self._tag, self._ranks, self._failed = base, tag, ranks, failed
        self._sent: list[MPI.Request] = []
        self._replies: list[bytearray] = []
        self._receives: list[MPI.Request] = []
        self.any_failed = False

    def _send(self, yes: bool, ranks: Sequence[int]) -> None:
        self.any_failed |= bool(self._failed())
        reply = (_FAILED if self.any_failed else _YES) if yes else 0
        self._sent += [self._base.Isend(bytearray([reply]), rank, self._tag) for rank in ranks]

    def _receive(self, ranks: Sequence[int]) -> None:
        self._replies = [bytearray(1) for _ in ranks]
        self._receives = [
            self._base.Irecv(reply, rank, self._tag) for reply, rank in zip(self._replies, ranks, strict=True)
        ]

    def _all_yes(self) -> bool | None:
        """Return whether all replies are yes; None until all have arrived."""
        if not all(request.Test() for request in self._receives):
            return None
        self.any_failed |= any(reply[0] == _FAILED for reply in self._replies)
        return all(reply[0] for reply in self._replies)

    def _refused(self) -> bool | None:
        """Return False after the refusal of this rank was sent, else None."""
        return False if all(request.Test() for request in self._sent) else None

    def arrived(self) -> bool:
        return self._all_yes() is not None

    def leave(self) -> None:
        """Give up the outstanding requests."""
        for request in self._receives:
            withdraw(request)
        keep_alive(*self._sent)


class _Root(_BarrierSide):
    def __init__(self, base: MPI.Intracomm, tag: int, ranks: list[int], failed: Callable[[], object]) -> None:
        super().__init__(base, tag, ranks, failed)
        self._others = ranks[1:]
        self._receive(self._others)

    def vote(self, yes: bool) -> Callable[[], bool | None]:
        self._send(yes, self._others)
        if not yes:
            return self._refused
        self._receive(self._others)
        return self._verdict

    def _verdict(self) -> bool | None:
        verdict = self._all_yes()
        if verdict is not None:
            self._send(verdict, self._others)
            self._others = []  # the verdict is sent only one time
        return verdict


class _Other(_BarrierSide):
    def __init__(self, base: MPI.Intracomm, tag: int, ranks: list[int], failed: Callable[[], object]) -> None:
        super().__init__(base, tag, ranks, failed)
        self._root = ranks[:1]
        self._send(True, self._root)
        self._receive(self._root)

    def vote(self, yes: bool) -> Callable[[], bool | None]:
        if yes and not self._all_yes():
            return lambda: False  # the first rank has left
        self._send(yes, self._root)
        if not yes:
            return self._refused
        self._receive(self._root)
        return self._all_yes
