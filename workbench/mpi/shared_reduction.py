"""Allreduce between ranks of one node: by parts, and through memory that the ranks share.

Each rank copies its array into slots of the shared memory, piece by piece, and reduces the pieces of all ranks from
there. Between few ranks each rank reduces whole pieces, so that a reduction has one wait; between more ranks each one
reduces a part of a piece, and copies the parts of the others (R. Graham and G. Shipman, *MPI Support for Multi-core
Architectures: Optimized Shared Memory Collectives*, 2008).

A wait sleeps on a futex of the rank that is late, so that the kernel wakes the rank immediately, also beside other
programs that keep the cores busy. Counters and data are ordered by x86-64, which makes the stores of a core visible in
their order; other processors may not, so `create` returns None there.

Reduce-scatter and allgather move the fewest bytes (R. Rabenseifner, *Optimization of Collective Reduction
Operations*, 2004, section 3). Both are non-blocking operations here, so the wait is cancelable, and leaves the core to
other programs. Within a node they are as fast as the blocking Allreduce of the MPI library. Between nodes the library
knows the network.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import platform
import secrets
import sys
import time
import zlib
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from workbench.errors import CollectiveFailed
from workbench.mpi.operation import InterruptibleComm
from workbench.mpi.polling import wait

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from workbench.mpi.operation import InterruptibleComm


# Bytes of a piece, a multiple of all item sizes, and pieces of each rank in the memory: a rank that arrives first
# copies this many before it waits. A slot is as large as a piece.
_PIECE, _SLOTS = 1 << 20, 4
# Ranks up to which each rank reduces whole pieces.
_FEW = _PAIR = 2
# The row of a rank in the table of counters, in numbers of 64 bits: a number that changes with each of the others,
# the pieces that the rank has written, reduced and read so far, the token, then the signature of each slot.
_BELL, _WRITTEN, _REDUCED, _DONE, _TOKEN, _SIGNATURES = 0, 1, 2, 3, 4, 8
_ROW = _SIGNATURES + 2 * _SLOTS
_NO_SIGNATURE = -1
# Seconds of tests at full speed, and of a sleep. Before each one MPI makes progress, for sent messages that are under
# way; MPICH may send some kilobytes of a message at each probe.
_SPIN, _SLEEP, _PROBES = 50e-6, 1e-3, 32
_ORDERED = platform.machine() == "x86_64" and sys.platform == "linux"
# Numbers of the system call and of its operations, on x86-64.
_FUTEX, _WAIT, _WAKE, _ALL = 202, 0, 1, 2**31 - 1


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_system_call = ctypes.CDLL(None).syscall
_system_call.argtypes = (ctypes.c_long, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p)
_SLEEP_TIME = ctypes.byref(_Time(0, int(_SLEEP * 1e9)))


def create(comm: InterruptibleComm) -> SharedReduction | None:
    """Return the slots of a communicator whose ranks share a node, or None if they cannot share memory; collective."""
    check, descriptor, memory = comm.watch.check, -1, None
    nbytes = comm.size * (_ROW * 8 + _SLOTS * _PIECE)
    # Rank 0 makes memory without a name, which ends with its last process. Others open it in the folder of rank 0.
    facts = np.zeros(3, np.int64)
    try:
        with contextlib.suppress(OSError, AttributeError):
            if comm.rank == 0 and _ORDERED:
                descriptor = os.memfd_create("workbench-reduction")
                os.ftruncate(descriptor, nbytes)
                memory = mmap.mmap(descriptor, nbytes)
                facts[:] = os.getpid(), descriptor, secrets.randbits(62)
                memoryview(memory).cast("q")[_TOKEN] = facts[2]
        wait(MPI.Comm.Ibcast(comm, facts, 0), check, buffers=facts)
        if comm.rank and facts[0]:
            memory = open_memory(facts, nbytes)
        shared = np.array([memory is not None], np.int64)
        wait(MPI.Comm.Iallreduce(comm, MPI.IN_PLACE, shared, MPI.MIN), check, buffers=shared)
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    return SharedReduction(comm, memory) if memory is not None and shared[0] else None


def open_memory(facts: NDArray[np.int64], nbytes: int) -> mmap.mmap | None:
    """Return the memory of rank 0; None if its process has another number in this container."""
    pid, number, token = facts.tolist()
    with contextlib.suppress(OSError, ValueError):
        descriptor = os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
        try:
            memory = mmap.mmap(descriptor, nbytes)
        finally:
            os.close(descriptor)
        if memoryview(memory).cast("q")[_TOKEN] == token:
            return memory
    return None


class SharedReduction:
    """Memory for the pieces of all ranks of a communicator.

    Parameters
    ----------
    comm
        The communicator.
    memory
        Shared by its ranks.

    Notes
    -----
    The ranks number their pieces alike. Piece `n` of a rank is in slot ``n % _SLOTS`` until all ranks have read it.
    After an operation that was canceled the slots must not be used, as the communicator must not.
    """

    def __init__(self, comm: InterruptibleComm, memory: mmap.mmap) -> None:
        # Not the object itself, which holds this one.
        self._comm, self._check = MPI.Intracomm(comm), comm.watch.check
        self._unused_tag: Any = comm.Get_attr(MPI.TAG_UB)
        self._rank, self._ranks = comm.rank, range(comm.size)
        table = comm.size * _ROW * 8
        self._numbers = memoryview(memory)[:table].cast("q")
        whole: NDArray[np.uint8] = np.frombuffer(memory, np.uint8)
        self._table = whole.ctypes.data
        self._slots = whole[table:].reshape(comm.size, _SLOTS, _PIECE)
        self._position, self._is_complete = 0, True

    def run(self, signature: tuple[int, int] | None, work: Work | None) -> bool:
        """Reduce on all ranks; collective.

        Parameters
        ----------
        signature
            Two numbers that describe the operation; None if this rank cannot do it.
        work
            The operation; None without a signature.

        Returns
        -------
        agreed : bool
            Whether the signatures of all ranks are equal; otherwise nothing was reduced, on all ranks.

        Raises
        ------
        CollectiveFailed
            If an earlier operation has raised an error on this rank: other ranks would take its pieces for new ones.
        """
        if not self._is_complete:
            raise CollectiveFailed("an earlier reduction on this communicator has failed. Use a duplicate, from Dup.")
        self._is_complete = False
        agreed = self._run(signature, work)
        self._is_complete = True
        return agreed

    def _run(self, signature: tuple[int, int] | None, work: Work | None) -> bool:
        first = self._position
        self._wait(_DONE, first - _SLOTS + 1)
        place = self._place(self._rank, first)
        self._numbers[place], self._numbers[place + 1] = signature or (_NO_SIGNATURE, self._rank)
        if work is None:
            self._set(_WRITTEN, first + 1)
        else:
            work.begin(first)
            self._write(work)
        self._wait(_WRITTEN, first + 1)
        signatures = {
            tuple(self._numbers[place : place + 2]) for place in (self._place(rank, first) for rank in self._ranks)
        }
        if work is None or len(signatures) > 1:
            # No rank has got as far, and none writes there before all ranks have read the signatures.
            self._position = first + 2 * _SLOTS
            for counter in (_WRITTEN, _REDUCED, _DONE):
                self._set(counter, self._position)
            return False
        while work.done < work.end:
            if work.written == work.done:
                self._wait(_DONE, work.written - _SLOTS + 1)
            self._write(work)
            self._reduce(work)
            self._read(work)
        self._position = work.end
        return True

    def _write(self, work: Work) -> None:
        """Copy as many pieces of this rank as there are free slots."""
        while work.written < work.end and self._all(_DONE, work.written - _SLOTS + 1):
            work.write(work.written - work.first, self._slots[self._rank, work.written % _SLOTS])
            work.written += 1
            self._set(_WRITTEN, work.written)

    def _reduce(self, work: Work) -> None:
        """Reduce the next piece; before a wait for what others reduce, also more if all ranks have written them."""
        while work.reduced < work.written:
            if work.reduced == work.done:
                self._wait(_WRITTEN, work.reduced + 1)
            elif not (work.in_parts and self._all(_WRITTEN, work.reduced + 1)):
                return
            work.reduce(work.reduced - work.first, self._slots[:, work.reduced % _SLOTS])
            work.reduced += 1
            self._set(_REDUCED, work.reduced)

    def _read(self, work: Work) -> None:
        """Copy the parts of the next piece that other ranks have reduced."""
        if work.in_parts:
            self._wait(_REDUCED, work.done + 1)
            work.read(work.done - work.first, self._slots[:, work.done % _SLOTS])
        work.done += 1
        self._set(_DONE, work.done)

    @staticmethod
    def _place(rank: int, piece: int) -> int:
        """Return the index of the signature in the slot of a piece."""
        return rank * _ROW + _SIGNATURES + 2 * (piece % _SLOTS)

    def _set(self, counter: int, value: int) -> None:
        row = self._rank * _ROW
        self._numbers[row + counter] = value
        self._numbers[row + _BELL] = (self._numbers[row + _BELL] + 1) & _ALL
        _system_call(_FUTEX, self._table + row * 8, _WAKE, _ALL, None)

    def _all(self, counter: int, value: int) -> bool:
        """Return whether a counter of all ranks has reached a value."""
        return min(self._numbers[counter::_ROW]) >= value

    def _wait(self, counter: int, value: int) -> None:
        for rank in self._ranks:
            if self._numbers[rank * _ROW + counter] < value:
                self._wait_for(rank, counter, value)

    def _wait_for(self, rank: int, counter: int, value: int) -> None:
        numbers, row, check = self._numbers, rank * _ROW, self._check
        bell, since = self._table + row * 8, time.monotonic()
        try:
            while True:
                rung = numbers[row + _BELL]
                if numbers[row + counter] >= value:
                    return
                check()
                if time.monotonic() - since > _SPIN:
                    # MPI raises here if the rank has ended. It only makes progress if the probe finds no message, so
                    # the tag is one that programs do not use.
                    for _ in range(_PROBES):
                        self._comm.Iprobe(rank, self._unused_tag)
                    _system_call(_FUTEX, bell, _WAIT, rung, _SLEEP_TIME)
        except BaseException:
            check()  # a cancellation is the cause of other errors after it
            raise


class Work:
    """An operation: its pieces, and how far this rank has got.

    Parameters
    ----------
    comm
        The communicator.
    send, receive
        Contiguous arrays that do not overlap; `send` of `Allreduce` may be ``MPI.IN_PLACE``.
    op
        A predefined operation.

    Attributes
    ----------
    in_parts : bool
        Whether each rank reduces a part of a piece for all.
    """

    in_parts = False
    written = reduced = done = first = end = 0

    def __init__(self, comm: InterruptibleComm, send: Any, receive: Any, op: MPI.Op) -> None:
        self._rank, self._size, self._op = comm.rank, comm.size, op
        self._received = receive.reshape(-1)
        self._sent = self._received if send is MPI.IN_PLACE else send.reshape(-1)

    def begin(self, first: int) -> None:
        """Give the pieces their numbers, from `first`."""
        self.written = self.reduced = self.done = self.first = first
        self.end = first - -self._received.size // self._length()

    def _length(self) -> int:
        """Return the items of the result in a piece."""
        itemsize: int = self._received.itemsize
        return _PIECE // itemsize

    def write(self, piece: int, slot: NDArray[np.uint8]) -> None:
        """Copy a piece of the array of this rank into its slot."""
        raise NotImplementedError

    def reduce(self, piece: int, slots: NDArray[np.uint8]) -> None:
        """Reduce a piece from the slots of all ranks, shape (size, bytes)."""
        raise NotImplementedError

    def read(self, piece: int, slots: NDArray[np.uint8]) -> None:
        """Copy what other ranks have reduced from their slots, shape (size, bytes)."""

    def _piece(self, row: NDArray[Any], piece: int) -> NDArray[Any]:
        begin = piece * self._length()
        return row[..., begin : begin + self._length()]


class Allreduce(Work):
    """The operation of this name."""

    def __init__(self, comm: InterruptibleComm, send: Any, receive: Any, op: MPI.Op) -> None:
        super().__init__(comm, send, receive, op)
        self.in_parts = comm.size > _FEW
        # The sum of two numbers has the same bits in both orders (but for the payload of NaN).
        self._is_sum_of_pair = send is MPI.IN_PLACE and op == MPI.SUM and comm.size == _PAIR

    def write(self, piece: int, slot: NDArray[np.uint8]) -> None:
        """As `Work.write`."""
        sent = self._piece(self._sent, piece)
        _like(sent, slot)[:] = sent

    def reduce(self, piece: int, slots: NDArray[np.uint8]) -> None:
        """As `Work.reduce`."""
        received = self._piece(self._received, piece)
        arrays = [_like(received, slot) for slot in slots]
        if self._is_sum_of_pair:
            self._op.Reduce_local(arrays[1 - self._rank], received)
        elif not self.in_parts:
            reduce_in_order(arrays, received, self._op)
        else:
            own = _part(len(received), self._rank, self._size)
            reduce_in_order([array[own] for array in arrays], received[own], self._op)
            arrays[self._rank][own] = received[own]

    def read(self, piece: int, slots: NDArray[np.uint8]) -> None:
        """As `Work.read`."""
        received = self._piece(self._received, piece)
        for rank, slot in enumerate(slots):
            if rank != self._rank:
                part = _part(len(received), rank, self._size)
                received[part] = _like(received, slot)[part]


class ReduceScatter(Work):
    """``Reduce_scatter_block``: a piece has some items of the part of each rank."""

    def _length(self) -> int:
        return super()._length() // self._size

    def write(self, piece: int, slot: NDArray[np.uint8]) -> None:
        """As `Work.write`."""
        sent = self._piece(self._sent.reshape(self._size, -1), piece)
        _like(sent, slot)[:] = sent

    def reduce(self, piece: int, slots: NDArray[np.uint8]) -> None:
        """As `Work.reduce`."""
        sent, received = self._piece(self._sent.reshape(self._size, -1), piece), self._piece(self._received, piece)
        reduce_in_order([_like(sent, slot)[self._rank] for slot in slots], received, self._op)


def _like(array: NDArray[Any], slot: NDArray[np.uint8]) -> NDArray[Any]:
    """Return the begin of a slot as an array of the shape and type of another one."""
    return slot[: array.nbytes].view(array.dtype).reshape(array.shape)


def reduce_in_order(arrays: list[NDArray[Any]], received: NDArray[Any], op: MPI.Op) -> None:
    """Reduce the arrays of the ranks in their order, so that all ranks, and repeated calls, get equal bits."""
    first, *others = arrays
    received[:] = first
    for other in others:
        op.Reduce_local(other, received)


def _part(length: int, rank: int, size: int) -> slice:
    return slice(length * rank // size, length * (rank + 1) // size)


# Bytes that are reduced in one step: more than the 25 MiB of a bucket of gradients, and a limit for the second copy.
_AT_ONCE = 32 << 20


def on_one_node(comm: InterruptibleComm) -> bool:
    """Return whether all ranks share a node; collective in the first call with a communicator."""
    if comm.one_node is None:
        node = zlib.crc32(MPI.Get_processor_name().encode())
        extremes = np.array([node, -node])
        wait(MPI.Comm.Iallreduce(comm, MPI.IN_PLACE, extremes, MPI.MAX), comm.watch.check, buffers=extremes)
        comm.one_node = bool(extremes[0] == -extremes[1])
    return comm.one_node


def reduce_in_parts(comm: InterruptibleComm, send: Any, receive: Any, op: MPI.Op) -> None:
    """Reduce contiguous arrays, of the same size and type on all ranks, with a predefined operation.

    `send` and `receive` do not overlap, or `send` is ``MPI.IN_PLACE``.
    """
    received = receive.reshape(-1)
    at_once = _AT_ONCE // received.itemsize
    for begin in range(0, received.size, at_once):
        row = received[begin : begin + at_once]
        _reduce(comm, row if send is MPI.IN_PLACE else send.reshape(-1)[begin : begin + at_once], row, op)


def _reduce(comm: InterruptibleComm, sent: Any, received: Any, op: MPI.Op) -> None:
    size, rank, check = comm.size, comm.rank, comm.watch.check
    counts = [(received.size + later) // size for later in range(size)]
    own = counts[rank]
    starts = _starts(counts)
    others = np.empty((size - 1, own), received.dtype)
    to_others, from_others = counts.copy(), [own] * size
    to_others[rank] = from_others[rank] = 0
    exchanged = [sent, (to_others, starts)], [others, (from_others, _starts(from_others))]
    wait(MPI.Comm.Ialltoallv(comm, *exchanged), check, buffers=exchanged)
    part = slice(starts[rank], starts[rank] + own)
    reduced = received[part]
    parts = [*others]
    parts.insert(rank, sent[part].copy() if sent is received and rank else sent[part])
    reduce_in_order(parts, reduced, op)
    gathered = MPI.IN_PLACE, [received, (counts, starts)]
    wait(MPI.Comm.Iallgatherv(comm, *gathered), check, buffers=gathered)


def _starts(counts: list[int]) -> list[int]:
    return [0, *accumulate(counts[:-1])]
