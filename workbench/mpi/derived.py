"""Communicators that are made from one another, and who frees them."""
# ruff: noqa: D102, N802  (names and documentation are mpi4py's)

from __future__ import annotations

import contextlib
import functools
from array import array
from typing import Any, ClassVar, NoReturn, Self, cast

from mpi4py import MPI

from workbench.errors import CollectiveFailed, InvalidRequest
from workbench.mpi.call_state import CallState
from workbench.mpi.operation import F, InterruptibleComm, operation, posting
from workbench.mpi.polling import keep_alive
from workbench.mpi.request import watched

_OF_MPI = (
    MPI.TAG_UB, MPI.IO, MPI.WTIME_IS_GLOBAL, MPI.UNIVERSE_SIZE, MPI.APPNUM, MPI.LASTUSEDCODE,
)  # fmt: skip


class DerivedCommunicators(InterruptibleComm):
    """A communicator, and what is made from it: all share a watch, and each can be ended."""

    _kinds: ClassVar[dict[type[MPI.Comm], type[DerivedCommunicators]]] = {}
    """What takes over a communicator of each of mpi4py's classes."""
    _offspring: list[MPI.Comm]
    """What was made from the communicator of the call, at however many removes."""
    _made_here = False

    def __new__(cls, comm: MPI.Comm | None = None, watch: CallState | None = None, key: int = 0) -> Self:
        """Take over the handle of a communicator."""
        # not super(): that of a topology is not the one whose memory layout Python has chosen for the class
        self = MPI.Intracomm.__new__(cls, comm)
        self.watch, self.key = watch or CallState(), key
        self._offspring = []
        return self

    def _adopted(self, made: Any) -> Any:
        """Take a communicator that was made from this one into the family."""
        if not isinstance(made, DerivedCommunicators):
            made = self._kinds[type(made)](made)
        made._join(self)  # noqa: SLF001  (one family)
        return made

    def _counted(self, made: Any) -> Any:
        """Have what was made from this, and can be asked for its ranks, counted under a key of its own."""
        if made != MPI.COMM_NULL and (counters := self.watch.counters) is not None:
            made._counting = self.counting(counters).for_derived(made)  # noqa: SLF001  (one family)
        return made

    def _join(self, founder: DerivedCommunicators) -> None:
        self.watch, self._offspring, self._made_here = founder.watch, founder._offspring, True
        self._offspring.append(self)

    def free_derived(self) -> None:
        """Free the communicators that were made from this one, and are not freed yet; collective."""
        while self._offspring:
            comm = self._offspring.pop()
            if comm != MPI.COMM_NULL:
                MPI.Comm.Free(comm)

    @property
    def offspring(self) -> list[MPI.Intracomm]:
        """What was made from this one and is not freed yet, without what is ours."""
        return [MPI.Intracomm(comm) for comm in self._offspring if comm != MPI.COMM_NULL]

    def revoke(self) -> None:
        """Have C code that waits in MPI here, or on what was made from this, get an error; nothing without ULFM."""
        for comm in (self, *self._offspring):
            with contextlib.suppress(MPI.Exception, NotImplementedError):
                MPI.Comm.Revoke(comm)

    def Revoke(self) -> None:
        """Revoke it; the next call gets another one."""
        self.watch.doubtful = True
        super().Revoke()

    def Set_errhandler(self, errhandler: MPI.Errhandler) -> None:
        """Set how errors are told; the next call gets another communicator."""
        self.watch.doubtful = True
        super().Set_errhandler(errhandler)

    def Get_attr(self, keyval: int) -> Any:
        """Return an attribute; those of MPI itself are attached to `MPI.COMM_WORLD` alone."""
        return MPI.COMM_WORLD.Get_attr(keyval) if keyval in _OF_MPI else super().Get_attr(keyval)

    def Free(self) -> None:
        """Free a communicator that was made from the one of the call.

        Raises
        ------
        InvalidRequest
            For the communicator of the call itself.
        """
        self._leave_family("Free")
        super().Free()

    def Disconnect(self) -> None:
        """Disconnect a communicator that was made from the one of the call; raises as `Free`."""
        self._leave_family("Disconnect")
        self.Barrier()
        super().Disconnect()

    def _leave_family(self, how: str) -> None:
        if not self._made_here:
            raise InvalidRequest(
                f"comm.{how}() was called on the communicator of the call, which ends with the call. Only those that "
                "you make from it, by Dup, Split and so on, can be freed"
            )
        self._offspring[:] = [comm for comm in self._offspring if comm is not self]

    def Abort(self, errorcode: int = 0) -> NoReturn:
        """End the call on all ranks, but not the world.

        Raises
        ------
        CollectiveFailed
            Always.
        """
        raise CollectiveFailed(
            f"comm.Abort({errorcode}) was called on rank {self.rank}: it ends the SPMD call, not the world"
        )

    @operation
    def Dup(self, info: MPI.Info | None = None) -> Self:
        return self._duplicate(info)

    @operation
    def Dup_with_info(self, info: MPI.Info) -> Self:
        return self._duplicate(info)

    @operation
    def Clone(self) -> Self:
        return self._duplicate(None)

    def _duplicate(self, info: MPI.Info | None) -> Self:
        self._meet_before_idup()
        made, request = MPI.Comm.Idup(self, info)
        return cast("Self", self._completed(made, request))

    def _meet_before_idup(self) -> None:
        """Return when all ranks are sure to post an ``Idup``, which MPI cannot withdraw.

        With Open MPI 5, while one waits for a rank that never posts it, no messages arrive on the next communicator of
        some ranks of the world.
        """
        self.meet(MPI.Comm.Ibarrier(self))

    def _completed(self, made: Any, request: MPI.Request) -> Any:
        self._wait_for(made, request)
        return self._counted(self._adopted(made))

    def _wait_for(self, made: MPI.Comm, request: MPI.Request) -> None:
        try:
            self._wait(request)
        except BaseException:
            keep_alive(request, made)  # MPI may write its handle
            raise

    @posting
    def Idup(self, info: MPI.Info | None = None) -> tuple[Self, MPI.Request]:
        made, request = super().Idup(info)
        adopted = self._adopted(made)
        if (counters := self.watch.counters) is not None:
            # until it is complete it cannot be asked
            adopted._counting = self.counting(counters).for_duplicate()  # noqa: SLF001  (one family)
        return adopted, watched(request, self.watch)

    def Idup_with_info(self, info: MPI.Info) -> tuple[Self, MPI.Request]:
        return self.Idup(info)

    @posting
    def Create_group(self, group: MPI.Group, tag: int = 0) -> MPI.Intracomm:
        """Make a communicator of a group, whose ranks alone call this. The wait for them cannot be ended."""
        return cast("MPI.Intracomm", self._counted(self._adopted(super().Create_group(group, tag))))

    @operation
    def Agree(self, flag: int) -> int:
        flags = array("i", [flag])
        self._run(MPI.Comm.Iagree, flags)
        return flags[0]

    @operation
    def Shrink(self) -> MPI.Comm:
        made, request = MPI.Comm.Ishrink(self)
        return cast("MPI.Comm", self._completed(made, request))

    @posting
    def Ishrink(self) -> tuple[MPI.Comm, MPI.Request]:
        made, request = super().Ishrink()
        return self._adopted(made), watched(request, self.watch)


def meeting(method: F) -> F:
    """Return an operation without a non-blocking twin that makes a communicator: the ranks meet first."""

    @functools.wraps(method)
    def make(self: DerivedCommunicators, *args: Any, **options: Any) -> Any:
        self.meet(MPI.Comm.Ibarrier(self))
        return self._counted(self._adopted(self.blocking(method, *args, **options)))

    return cast("F", operation(make))


for _name in ("Create", "Split", "Split_type", "Create_cart", "Create_graph", "Create_dist_graph",
              "Create_dist_graph_adjacent"):  # fmt: skip
    setattr(DerivedCommunicators, _name, meeting(getattr(MPI.Intracomm, _name)))
