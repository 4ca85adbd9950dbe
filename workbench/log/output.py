"""Log files on a disk that may be full: what does not fit is lost, and the process goes on."""

from __future__ import annotations

import errno
import io
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from workbench.log import written

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

FULL = (errno.ENOSPC, errno.EDQUOT)
"""Numbers of the errors of a full disk and of an exhausted quota."""


class _LogFile(io.FileIO):
    def write(self, data: ReadableBuffer, /) -> int:
        with written.lock:
            try:
                number = super().write(data)
            except OSError as error:
                if error.errno not in FULL:
                    raise
                return memoryview(data).nbytes
            written.note(number)
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
