"""The buffer of buffered sends, of which a process has one: detached after a call that has failed before it could."""

from __future__ import annotations

from typing import Any

from mpi4py import MPI

# Bytes of the attached buffer; None without one, or with one whose size MPI chooses.
_nbytes: int | None = None
_attach, _detach = MPI.Attach_buffer, MPI.Detach_buffer


def track() -> None:
    """Note from now on what programs attach by ``MPI.Attach_buffer``."""
    if MPI.Attach_buffer is not attach:
        MPI.Attach_buffer, MPI.Detach_buffer = attach, detach


def attach(buf: Any) -> None:
    """Attach a buffer, like ``MPI.Attach_buffer``."""
    global _nbytes  # noqa: PLW0603  (MPI has one buffer for each process)
    _attach(buf)
    try:
        _nbytes = memoryview(buf).nbytes
    except TypeError:  # the buffer that MPI makes
        _nbytes = None


def detach() -> Any:
    """Detach the buffer, like ``MPI.Detach_buffer``."""
    global _nbytes  # noqa: PLW0603
    found = _detach()
    _nbytes = None
    return found


def is_attached() -> bool:
    """Return whether a buffer is attached that `detach_empty` can detach."""
    return _nbytes is not None


def detach_empty() -> bool:
    """Detach the buffer if all its messages have left it; return whether no buffer is attached any more.

    ``MPI_Buffer_detach`` waits for the messages in the buffer, without end if nobody receives one, and MPI cannot be
    asked for them before version 4.1. A message that fills the buffer fits only if the buffer is empty.
    """
    if _nbytes is None:
        return True
    alone = MPI.COMM_SELF.Dup()
    message = bytearray(max(0, _nbytes - MPI.BSEND_OVERHEAD))
    request = alone.Irecv(bytearray(len(message)), 0)
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
