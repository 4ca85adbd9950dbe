"""The buffer of buffered sends, of which a process has one: detached after a call that has failed before it could."""

from __future__ import annotations

from typing import Any

from mpi4py import MPI

from workbench.mpi.polling import keep_alive

# Bytes of the attached buffer, if there is one; 0 for one that MPI makes, ``MPI.BUFFER_AUTOMATIC``.
_attached: list[int] = []
_attach, _detach = MPI.Attach_buffer, MPI.Detach_buffer


def track() -> None:
    """Note from now on what programs attach by ``MPI.Attach_buffer``."""
    if MPI.Attach_buffer is not attach:
        MPI.Attach_buffer, MPI.Detach_buffer = attach, detach


def attach(buf: Any) -> None:
    """Attach a buffer, like ``MPI.Attach_buffer``."""
    _attach(buf)
    try:
        _attached[:] = [MPI.memory.frombuffer(buf).nbytes]
    except TypeError:  # None, which stands for BUFFER_AUTOMATIC
        _attached[:] = [0]


def detach() -> Any:
    """Detach the buffer, like ``MPI.Detach_buffer``."""
    found = _detach()
    _attached.clear()
    return found


def is_attached() -> bool:
    """Return whether a buffer is attached."""
    return bool(_attached)


def detach_empty() -> bool:
    """Detach the buffer if all its messages have left it; return whether no buffer is attached any more.

    ``MPI_Buffer_detach`` waits for the messages in the buffer, without end if nobody receives one, and MPI cannot be
    asked for them before version 4.1. A message that fills the buffer fits only if the buffer is empty. A buffer that
    MPI makes grows instead, but only MPI 4.1 has those.
    """
    if not _attached:
        return True
    nbytes = _attached[0]
    if not nbytes:
        flush = MPI.Iflush_buffer()
        if flush.Test():
            detach()
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
        detach()
        return True
    finally:
        request.Wait()
        alone.Free()
