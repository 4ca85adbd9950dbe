"""Kills of processes for lack of memory, as the kernel counts them."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path

# Seconds from a kill until the loss of the process is seen: the kernel first frees the memory of the process.
_RECENT = 10.0


class MemoryKills:
    """The kills on this host in the last seconds; `sample` must be called about once per second."""

    def __init__(self, counters: Path = Path("/proc/vmstat")) -> None:
        self._counters = counters
        self._samples = deque([(time.monotonic(), self._count())])

    def sample(self) -> None:
        """Note the present number of kills."""
        now = time.monotonic()
        self._samples.append((now, self._count()))
        while len(self._samples) > 1 and self._samples[1][0] < now - _RECENT:
            self._samples.popleft()

    def recent(self) -> bool:
        """Return whether the kernel has killed a process in the last seconds; False where it does not count kills."""
        return self._count() > self._samples[0][1]

    def _count(self) -> int:
        # The number includes kills at the limit of a control group, of both versions, whose own counters are removed
        # with the group.
        try:
            lines = self._counters.read_text().splitlines()
        except OSError:
            return 0
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
