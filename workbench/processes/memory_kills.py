"""Kills of processes for lack of memory, as the kernel counts them."""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from itertools import chain
from pathlib import Path

# Seconds from a kill until the loss of the process is seen: the kernel first frees the memory of the process.
_RECENT = 10.0


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
        while len(self._samples) > 1 and self._samples[1][0] < now - _RECENT:
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
