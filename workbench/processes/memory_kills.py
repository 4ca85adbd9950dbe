"""Kills of processes for lack of memory, as the kernel counts them."""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
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
        # Control groups first: the kill of a process of the cluster is a more precise statement.
        self._places = {host: "this host"}
        self._samples = deque([(time.monotonic(), {host: _count(host)})])

    def watch(self, pid: int) -> None:
        """Count also the kills in the control group of a process, if its counter is readable here."""
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
                _, controllers, path = line.split(":", 2)
                folder = self._groups / controllers / path.lstrip("/")
                for file in (folder / "memory.events", folder / "memory.oom_control"):
                    if file not in self._places and file.exists():
                        self._places = {file: "its control group", **self._places}
                        for _, counts in self._samples:
                            counts[file] = _count(file)

    def sample(self) -> None:
        """Note the present number of kills."""
        now = time.monotonic()
        self._samples.append((now, {file: _count(file) for file in self._places}))
        while len(self._samples) > 1 and self._samples[1][0] < now - _RECENT:
            self._samples.popleft()

    def recent(self) -> str:
        """Return where the kernel has killed a process in the last seconds; empty where it does not count kills."""
        before = self._samples[0][1]
        return next((place for file, place in self._places.items() if _count(file) > before[file]), "")


def _count(file: Path) -> int:
    # The file of a control group is removed with the group.
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
