"""Communicators derived from that of a call, `Spawn`, and the buffer of buffered sends: what ends with a call."""

# ruff: noqa: N802  (the names are mpi4py's)
from __future__ import annotations

# ruff: noqa: D102, N802  (names and documentation are mpi4py's)
import contextlib
import functools
import os
import sys
from array import array
from types import FrameType
from typing import Any, ClassVar, NoReturn, Self, cast

from mpi4py import MPI

from workbench.errors import CollectiveFailed, InvalidRequest
from workbench.mpi.call_state import CallState
from workbench.mpi.context import everyone
from workbench.mpi.operation import F, InterruptibleComm, collective_number, operation, posting
from workbench.mpi.polling import keep_alive
from workbench.mpi.request import cancelable

# Transports of Open MPI within a world on one host.
_LOCAL = {"self", "sm", "vader"}
# The function of mpi4py's executor that spawns, on a thread.
_SPAWNS = "_manager_spawn"


class SpawningComm(MPI.Intracomm):
    """A communicator that starts processes only if Open MPI can connect them."""

    def Spawn(self, *args: Any, **options: Any) -> MPI.Intercomm:
        """Start processes; raise InvalidRequest if they could not reach the ranks."""
        _check()
        return super().Spawn(*args, **options)

    def Spawn_multiple(self, *args: Any, **options: Any) -> MPI.Intercomm:
        """Start processes of several programs; raise InvalidRequest if they could not reach the ranks."""
        _check()
        return super().Spawn_multiple(*args, **options)


def _check() -> None:
    """Raise InvalidRequest where Open MPI waits for new processes, and then fails, or starts processes that stay."""
    transports = os.environ.get("OMPI_MCA_btl")  # noqa: SIM112  (its name)
    if transports is None or MPI.get_vendor()[0] != "Open MPI" or not _LOCAL.issuperset(transports.split(",")):
        return
    error = InvalidRequest(
        "MPI cannot start processes here, because the ranks of one host use only shared memory, which new processes "
        "cannot join. Tasks of Dask need no new processes. Or start the cluster with OMPI_MCA_btl=self,sm,tcp in its "
        "environment, and with --map-by :oversubscribe in workbench.mpi.extra-args. Open MPI then opens TCP ports, "
        "which do not check who connects."
    )
    _tell_executor(sys._getframe(), str(error))  # noqa: SLF001  (documented)
    raise error


def _tell_executor(frame: FrameType | None, reason: str) -> None:
    """Fail the futures of an `MPIPoolExecutor` that spawns: they would wait for its thread, which an error ends."""
    while frame is not None and frame.f_code.co_name != _SPAWNS:
        frame = frame.f_back
    if frame is not None:
        frame.f_locals["pool"].broken(reason)


_WORLD_ATTRIBUTES = (
    MPI.TAG_UB, MPI.IO, MPI.WTIME_IS_GLOBAL, MPI.UNIVERSE_SIZE, MPI.APPNUM, MPI.LASTUSEDCODE,
)  # fmt: skip


class DerivedCommunicators(SpawningComm, InterruptibleComm):
    """A communicator that shares the state of the call with all communicators derived from it."""

    _kinds: ClassVar[dict[type[MPI.Comm], type[DerivedCommunicators]]] = {}
    """The class that replaces each communicator class of mpi4py."""
    _derived: list[MPI.Comm]
    """All communicators derived from that of the call, directly or not."""
    _is_derived = False

    def __new__(cls, comm: MPI.Comm | None = None, watch: CallState | None = None, key: int = 0) -> Self:
        """Take over the handle of a communicator."""
        # super() of a topology would be a class with another memory layout than that of this class.
        self = MPI.Intracomm.__new__(cls, comm)
        self.watch, self.key = watch or CallState(), key
        self._derived = []
        return self

    def _register(self, comm: Any) -> Any:
        """Make a communicator derived from this one share the state of the call, and return it."""
        if not isinstance(comm, DerivedCommunicators):
            comm = self._kinds[type(comm)](comm)
        comm._share_state(self)  # noqa: SLF001  (the same class)
        return comm

    def _counted(self, comm: Any) -> Any:
        """Count the traffic of a complete derived communicator with a separate key."""
        if comm != MPI.COMM_NULL and (counters := self.watch.counters) is not None:
            comm._counting = self.counting(counters).for_derived(comm)  # noqa: SLF001  (the same class)
        return comm

    def _share_state(self, parent: DerivedCommunicators) -> None:
        self.watch, self._derived, self._is_derived = parent.watch, parent._derived, True
        self._derived.append(self)

    def free_derived(self) -> None:
        """Free the derived communicators that are not freed yet; collective."""
        while self._derived:
            comm = self._derived.pop()
            if comm != MPI.COMM_NULL:
                MPI.Comm.Free(comm)

    def release_memory(self) -> None:
        """Release the memory that the ranks share for reductions, of this and derived communicators."""
        for comm in (self, *self._derived):
            if isinstance(comm, InterruptibleComm):  # others are those of mpi4py
                comm.shared_reduction = None

    @property
    def derived(self) -> list[MPI.Intracomm]:
        """The derived communicators that are not freed yet, as plain ones of mpi4py."""
        return [MPI.Intracomm(comm) for comm in self._derived if comm != MPI.COMM_NULL]

    @property
    def collective_counts(self) -> list[int]:
        """`collectives` of this communicator and of each of `derived`."""
        return [getattr(comm, "collectives", 0) for comm in (self, *self._derived) if comm != MPI.COMM_NULL]

    @property
    def collective_sum(self) -> int:
        """Sum of the numbers of all collective operations on this communicator and on `derived`."""
        return sum(
            comm.collectives * collective_number(comm.rank, comm.size)
            for comm in (self, *self._derived)
            if isinstance(comm, InterruptibleComm) and comm.collectives and comm != MPI.COMM_NULL
        )

    def revoke(self) -> None:
        """Raise an error in C code that waits on this or a derived communicator; no effect without ULFM."""
        for comm in (self, *self._derived):
            with contextlib.suppress(MPI.Exception, NotImplementedError):
                MPI.Comm.Revoke(comm)

    def Revoke(self) -> None:
        """Revoke this communicator. The next call gets another one."""
        self.watch.maybe_modified = True
        super().Revoke()

    def Set_errhandler(self, errhandler: MPI.Errhandler) -> None:
        """Set the error handler. The next call gets another communicator."""
        self.watch.maybe_modified = True
        super().Set_errhandler(errhandler)

    def Attach_buffer(self, buf: Any) -> None:
        """Attach a buffer, which is detached after the call."""
        self.watch.maybe_modified = True
        super().Attach_buffer(buf)

    def Get_attr(self, keyval: int) -> Any:
        """Return an attribute. The attributes of MPI itself are those of ``MPI_COMM_WORLD``."""
        return everyone().Get_attr(keyval) if keyval in _WORLD_ATTRIBUTES else super().Get_attr(keyval)

    def Free(self) -> None:
        """Free a derived communicator; raise InvalidRequest for the communicator of the call."""
        self._unregister("Free")
        super().Free()

    def Disconnect(self) -> None:
        """Disconnect a derived communicator; raise InvalidRequest for the communicator of the call."""
        self._unregister("Disconnect")
        self.Barrier()
        super().Disconnect()

    def outliving(self) -> MPI.Comm:
        """Return this derived communicator as one of mpi4py, which the call does not free."""
        self._unregister("outliving")
        return next(kind for kind, ours in self._kinds.items() if type(self) is ours)(self)

    def _unregister(self, method: str) -> None:
        if not self._is_derived:
            raise InvalidRequest(
                f"comm.{method}() was called on the communicator of the call, which ends with the call. Only derived "
                "communicators, from Dup, Split and so on, can be freed.",
                given=method,
            )
        self._derived[:] = [comm for comm in self._derived if comm is not self]
        self.shared_reduction = None

    def Abort(self, errorcode: int = 0) -> NoReturn:
        """End the call, but not the world: always raises CollectiveFailed."""
        raise CollectiveFailed(
            f"comm.Abort({errorcode}) was called on rank {self.rank}, which ends the SPMD call, but not the world."
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
        self._synchronize_before_idup()
        comm, request = MPI.Comm.Idup(self, info)
        return cast("Self", self._completed(comm, request))

    def _synchronize_before_idup(self) -> None:
        """Return when all ranks are sure to post an ``Idup``, which MPI cannot withdraw.

        With Open MPI 5, while one waits for a rank that never posts it, no messages arrive on the next communicator of
        some ranks of the world.
        """
        self.synchronize(MPI.Comm.Ibarrier(self))

    def _completed(self, comm: Any, request: MPI.Request) -> Any:
        self._wait_for(comm, request)
        return self._counted(self._register(comm))

    def _wait_for(self, comm: MPI.Comm, request: MPI.Request) -> None:
        try:
            self._wait(request)
        except BaseException:
            keep_alive(request, comm)  # MPI may still write the handle
            raise

    @posting
    def Idup(self, info: MPI.Info | None = None) -> tuple[Self, MPI.Request]:
        comm, request = super().Idup(info)
        derived = self._register(comm)
        if (counters := self.watch.counters) is not None:
            # The ranks of an incomplete communicator cannot be queried.
            derived._counting = self.counting(counters).for_duplicate()  # noqa: SLF001  (the same class)
        return derived, cancelable(request, self.watch)

    def Idup_with_info(self, info: MPI.Info) -> tuple[Self, MPI.Request]:
        return self.Idup(info)

    @posting
    def Create_group(self, group: MPI.Group, tag: int = 0) -> MPI.Intracomm:
        """Create a communicator of a group; only its ranks call this. The wait for them cannot be canceled."""
        return cast("MPI.Intracomm", self._counted(self._register(super().Create_group(group, tag))))

    @operation
    def Agree(self, flag: int) -> int:
        flags = array("i", [flag])
        self._run(MPI.Comm.Iagree, flags)
        return flags[0]

    @operation
    def Shrink(self) -> MPI.Comm:
        comm, request = MPI.Comm.Ishrink(self)
        return cast("MPI.Comm", self._completed(comm, request))

    @posting
    def Ishrink(self) -> tuple[MPI.Comm, MPI.Request]:
        comm, request = super().Ishrink()
        return self._register(comm), cancelable(request, self.watch)


def after_barrier(method: F) -> F:
    """Return an operation that creates a communicator and cannot be canceled, with a cancelable barrier before."""

    @functools.wraps(method)
    def make(self: DerivedCommunicators, *args: Any, **options: Any) -> Any:
        self.synchronize(MPI.Comm.Ibarrier(self))
        return self._counted(self._register(self.blocking(method, *args, **options)))

    return cast("F", operation(make))


for _name in ("Create", "Split", "Split_type", "Create_cart", "Create_graph", "Create_dist_graph",
              "Create_dist_graph_adjacent"):  # fmt: skip
    setattr(DerivedCommunicators, _name, after_barrier(getattr(MPI.Intracomm, _name)))

# Bytes of the attached buffer, if there is one; 0 for one that MPI makes, ``MPI.BUFFER_AUTOMATIC``.
_attached: list[int] = []
_attach, _detach = MPI.Attach_buffer, MPI.Detach_buffer


def track_buffer() -> None:
    """Note from now on what programs attach by ``MPI.Attach_buffer``."""
    if MPI.Attach_buffer is not attach_buffer:
        MPI.Attach_buffer, MPI.Detach_buffer = attach_buffer, detach_buffer


def attach_buffer(buf: Any) -> None:
    """Attach a buffer, like ``MPI.Attach_buffer``."""
    _attach(buf)
    try:
        _attached[:] = [MPI.memory.frombuffer(buf).nbytes]
    except TypeError:  # None, which stands for BUFFER_AUTOMATIC
        _attached[:] = [0]


def detach_buffer() -> Any:
    """Detach the buffer, like ``MPI.Detach_buffer``."""
    found = _detach()
    _attached.clear()
    return found


def is_buffer_attached() -> bool:
    """Return whether a buffer is attached."""
    return bool(_attached)


def detach_empty_buffer() -> bool:
    """Detach the buffer if all its messages have left it; return whether no buffer is attached any more.

    ``MPI_Buffer_detach`` waits for the messages in the buffer, without end if no rank receives one, and MPI cannot be
    asked for them before version 4.1. A message that fills the buffer fits only if the buffer is empty. A buffer that
    MPI makes grows instead, but only MPI 4.1 has those.
    """
    if not _attached:
        return True
    nbytes = _attached[0]
    if not nbytes:
        flush = MPI.Iflush_buffer()
        if flush.Test():
            detach_buffer()
        else:
            keep_alive(flush)
        return not _attached
    message = bytearray(max(0, nbytes - MPI.BSEND_OVERHEAD))
    received = bytearray(len(message))
    alone = MPI.COMM_SELF.Dup()  # not earlier: a MemoryError would leave this communicator behind
    request = alone.Irecv(received, 0)
    try:
        alone.Bsend(message, 0)
    except MPI.Exception:
        request.Cancel()
        return False
    else:
        detach_buffer()
        return True
    finally:
        request.Wait()
        alone.Free()
