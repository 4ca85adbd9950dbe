"""Why a rank was lost: a crash, as `faulthandler` describes a crash in the log, or a kill for lack of memory."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections import deque
from contextlib import suppress
from itertools import chain
from pathlib import Path
from signal import Signals

from workbench.call_stack import is_users, place, workbench_folder
from workbench.text import brief, exit_description

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
_RECENT_DUMP_S = 60.0
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
        if time.time() - status.st_mtime < _RECENT_DUMP_S:
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


# Seconds from a kill until the loss of the process is seen: the kernel first frees the memory of the process.
_SAMPLED_S = 10.0


class MemoryKills:
    """The kills on this host in the last seconds; `sample` must be called about once per second.

    Parameters
    ----------
    host
        File with the counter of the host, which includes kills at the limit of a control group.
    groups
        Folder of the control groups, of version 1, 2 or both.
    """

    def __init__(self, host: Path = Path("/proc/vmstat"), groups: Path = Path("/sys/fs/cgroup")) -> None:
        self._groups = groups
        self._host = host
        self._files: dict[int, list[Path]] = {}
        self._samples = deque([(time.monotonic(), {host: _count(host)})])

    def watch(self, pid: int) -> None:
        """Count also the kills in the control group of a process, if its counter is readable here."""
        files = self._files[pid] = []
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
                _, controllers, path = line.split(":", 2)
                folder = self._groups / controllers / path.lstrip("/")
                files += filter(Path.exists, (folder / "memory.events", folder / "memory.oom_control"))
        for file in files:
            count = _count(file)
            for _, counts in self._samples:
                counts.setdefault(file, count)

    def forget(self, pid: int) -> None:
        """Count no longer the kills in the control group of a process."""
        self._files.pop(pid, None)

    def sample(self) -> None:
        """Note the present number of kills."""
        now = time.monotonic()
        self._samples.append((now, {file: _count(file) for file in {self._host, *chain(*self._files.values())}}))
        while len(self._samples) > 1 and self._samples[1][0] < now - _SAMPLED_S:
            self._samples.popleft()

    def recent(self, pid: int) -> str:
        """Return where, seen from a process, the kernel has killed one in the last seconds; empty if nowhere known."""
        before = self._samples[0][1]
        if any(_count(file) > before[file] for file in self._files.get(pid, ())):
            return "its control group"
        return "this host" if _count(self._host) > before[self._host] else ""


def _count(file: Path) -> int:
    # The file of a control group is removed with the group.
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
