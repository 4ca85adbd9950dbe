"""The crash of a rank by a signal, as `faulthandler` has described the crash in the log of the rank."""

from __future__ import annotations

import asyncio
import os
import re
import time
from contextlib import suppress
from pathlib import Path
from signal import Signals

from workbench.log.printable import brief
from workbench.metrics.call_stack import is_users, place, workbench_folder
from workbench.text import exit_description

SIGNALS = {
    "Segmentation fault": Signals.SIGSEGV,
    "Bus error": Signals.SIGBUS,
    "Floating point exception": Signals.SIGFPE,
    "Floating-point exception": Signals.SIGFPE,  # since Python 3.13
    "Illegal instruction": Signals.SIGILL,
    "Aborted": Signals.SIGABRT,
}
"""Signals of crashes, by the names that `faulthandler` uses."""

# Seconds to read a log.
_WITHIN = 1.0
# Seconds since the last output of a crashed rank, at most, also if the clocks of two hosts differ. An earlier text is
# that of a child of the rank.
_RECENT = 60.0
# Bytes at the end of a log, which hold the stacks of 100 threads.
_TAIL = 1 << 20
# The line with which each start of a rank begins in the log, see `workbench.rank.world`.
_START = re.compile(r"^rank \d+ of \d+, .*, MPI_THREAD_\w+$", re.MULTILINE)
# The process ends after this text: the last line is a frame, or the list of modules.
_LAST = ("  ", "Extension modules:")
_THREAD = re.compile(r"^Current thread 0x.*\n((?:  .*\n?)*)", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.+)$', re.MULTILINE)
# A character that is not of ASCII.
_ESCAPED = re.compile(r"\\(?:x[89a-f][0-9a-f]|u[0-9a-f]{4}|U(?:000[0-9a-f]|0010)[0-9a-f]{4})")


async def read(log: Path) -> str:
    """Return how a rank has crashed, by its log, as the end of a sentence; empty if the log does not say this in time.

    The log of a rank on another host has the text before the connection of the rank breaks: the end of a process closes
    its standard output first, and NFS writes a file when it is closed.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(_WITHIN):
            # A file system may hang, so a thread reads.
            return await asyncio.to_thread(_read, log)
    return ""


def _read(log: Path) -> str:
    with suppress(OSError), log.open("rb") as file:
        status = os.fstat(file.fileno())
        if time.time() - status.st_mtime < _RECENT:
            file.seek(max(0, status.st_size - _TAIL))
            return describe(file.read().decode(errors="replace"))
    return ""


def describe(log: str) -> str:
    r"""Return how a rank has crashed, by the end of its log; empty if the log does not end with a crash.

    The line is the innermost one of user code. Without user code, the line is that of a library. A signal of another
    process arrives in a thread that waits in the workbench, and has no line.

    Examples
    --------
    >>> stack = 'Current thread 0x1 (most recent call first):\n  File "/home/user/fit.py", line 9 in solve\n'
    >>> describe(f"Fatal Python error: Segmentation fault\n\n{stack}")
    ' with signal 11 (SIGSEGV) at fit.py:9 in solve'
    """
    _, begin, text = _START.split(log)[-1].rpartition("Fatal Python error: ")
    lines = text.rstrip().splitlines()
    if not begin or len(lines) < 2 or not lines[-1].startswith(_LAST):
        return ""
    # Python itself aborts with any other name.
    name = "" if lines[0] in SIGNALS else f", {brief(lines[0])}"
    how = f" with {exit_description(-SIGNALS.get(lines[0], Signals.SIGABRT))}{name}"
    thread = _THREAD.search(text)
    stack = _ESCAPED.sub(lambda escaped: chr(int(escaped[0].lstrip("\\xuU"), 16)), thread[1] if thread else "")
    frames = [(file, int(line), function) for file, line, function in _FRAME.findall(stack)]
    if not frames or frames[0][0].startswith(workbench_folder()):
        return how
    innermost = frames[0]
    shown = next((frame for frame in frames if is_users(frame[0])), innermost)
    called = f", in a call of {brief(innermost[2])} ({place(*innermost)})" if shown != innermost else ""
    at = place(*shown)
    function = "" if at.startswith("line ") else f" in {brief(shown[2])}"  # "line 9 of solve"
    return f"{how} at {at}{function}{called}"
