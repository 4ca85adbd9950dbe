"""Log files on a disk that may be full, and the output of this process since a moment."""

from __future__ import annotations

import ctypes
import errno
import functools
import io
import os
import re
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


# Messages of Dask, which may come from any thread.
_MESSAGES = re.compile(rb"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} - distributed.*\n?", re.MULTILINE)

# For each write of Python to the log while a `Written` is open: begin, end, and whether a thread of the worker wrote.
_writes: list[tuple[int, int, bool]] = []
_open: set[Written] = set()
lock = threading.RLock()
"""Held from a write of Python to its note, since the position moves with the write of another thread."""
os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)


class Written:
    """What is written to the log of this process, which its standard output and error share, from now on.

    Parameters
    ----------
    but_prints
        Leave out what Python has written. Otherwise only tasks and the worker are left out.

    Notes
    -----
    Programs and C code write to the log without a call of Python, so that their output is found by its place in the
    file. Each write moves the position of the open file, which needs no query of a file server.
    """

    def __init__(self, *, but_prints: bool = False) -> None:
        self.but_prints = but_prints
        flush_c()
        with lock:
            self._begin = _position()
            _open.add(self)

    def take(self, limit: int) -> tuple[str, int]:
        """Return at most `limit` bytes of the text, and the number of further bytes; the last call of an object."""
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # a stream of the user
                stream.flush()
        flush_c()
        with lock:
            end = _position()
            _open.discard(self)
            left_out = [(begin, stop) for begin, stop, of_worker in _writes if of_worker or self.but_prints]
            if not _open:
                _writes.clear()
        pieces, place = [], self._begin
        for begin, stop in [*left_out, (end, end)]:
            if begin > place:
                pieces.append((place, min(begin, end)))
            place = max(place, stop)
        if not (wanted := sum(stop - begin for begin, stop in pieces)):
            return "", 0
        text = _MESSAGES.sub(b"", _read(pieces, limit))
        return text.decode(errors="replace"), max(0, wanted - limit)


def note(number: int) -> None:
    """Note that Python has written so many bytes to the log. On the thread that has written, which holds the lock."""
    if not _open:
        return
    of_worker = is_of_worker(threading.current_thread())
    if not of_worker and not any(each.but_prints for each in _open):
        return  # nothing leaves out this write
    end = _position()
    begin = end - number
    if _writes and _writes[-1][1:] == (begin, of_worker):
        begin = _writes.pop()[0]  # a call may print for days
    _writes.append((begin, end, of_worker))


def is_of_worker(thread: threading.Thread) -> bool:
    """Return whether a thread of a rank runs the event loop of the worker, or tasks."""
    return thread.name == "dask-worker" or "Dask-" in thread.name


def _position() -> int:
    """Return the end of the log after the last write of this process or of a program that it has started."""
    try:
        return os.lseek(1, 0, os.SEEK_CUR)
    except OSError:  # a terminal or a pipe
        return 0


def flush_c() -> None:
    """Write what C code has printed, which C code does line by line from the first call on.

    Otherwise C code keeps up to 4 KiB until the end of the process, and the end of a line that it begins in a call
    appears in a later call.
    """
    if (output := _c_output()) and output[0]():
        # Not all files: the flush of a file waits for a thread that reads from this file.
        output[1]()


@functools.cache
def _c_output() -> tuple[Callable[[], int], Callable[[], int]] | None:
    """Return functions for the standard output of C: the number of bytes in its buffer, and the flush.

    Only the flush releases the interpreter, because a thread that releases the interpreter may wait to get it back.
    """
    library = ctypes.CDLL(None)
    with suppress(AttributeError, ValueError):  # a C library with other names
        stream = ctypes.c_void_p.in_dll(library, "stdout")
        library.setlinebuf(stream)
        return functools.partial(ctypes.pythonapi["__fpending"], stream), functools.partial(library.fflush, stream)
    return None


def _read(pieces: list[tuple[int, int]], limit: int) -> bytes:
    contents: list[bytes] = []
    with suppress(OSError), open("/proc/self/fd/1", "rb") as log:
        for begin, end in pieces:
            if limit <= 0:
                break
            log.seek(begin)
            contents.append(log.read(min(end - begin, limit)))
            limit -= len(contents[-1])
    return b"".join(contents)


FULL = (errno.ENOSPC, errno.EDQUOT)
"""Numbers of the errors of a full disk and of an exhausted quota."""


class _LogFile(io.FileIO):
    def write(self, data: ReadableBuffer, /) -> int:
        with lock:
            try:
                number = super().write(data)
            except OSError as error:
                if error.errno not in FULL:
                    raise
                return memoryview(data).nbytes
            note(number)
            return number

    def close(self) -> None:
        if self.closefd:
            super().close()


class _KeptBuffer(io.BufferedWriter):
    def close(self) -> None:
        self.flush()

    def detach(self) -> Any:
        self.flush()
        return self.raw


class _Kept(io.TextIOWrapper):
    """A standard stream that code of the user cannot close, also not by the end of another stream with its buffer."""

    def close(self) -> None:
        self.flush()

    def detach(self) -> Any:
        self.flush()
        return self.buffer


def append(path: Path, opener: Callable[[str, int], int] | None = None) -> BinaryIO:
    """Open a log to write at its end."""
    return io.BufferedWriter(_LogFile(path, "a", opener=opener))


def keep_on() -> None:
    """Let the output of this process, which goes to a log, raise no error on a full disk: ``print`` in user code, too.

    Its streams stay open, whatever that code closes. Output of C code ignores errors anyway.
    """
    for name, number in (("stdout", 1), ("stderr", 2)):
        before = getattr(sys, name)
        if isinstance(before, io.TextIOWrapper):  # else the process was started without this file
            with suppress(OSError):
                before.flush()
            raw = _LogFile(number, "w", closefd=False)
            after = _Kept(
                # The interpreter does the same with PYTHONUNBUFFERED.
                raw if before.write_through else _KeptBuffer(raw),
                encoding=before.encoding,
                errors=before.errors,
                line_buffering=before.line_buffering,
                write_through=before.write_through,
            )
            setattr(sys, name, after)
            setattr(sys, f"__{name}__", after)
