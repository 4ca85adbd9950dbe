"""How far the memory of a process grows beyond what it held before, at most, while something runs."""

from __future__ import annotations

import ctypes
import gc
import os
import threading
from dataclasses import dataclass
from pathlib import Path

import psutil

_CLEAR, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")
# What has the kernel forget the peak: proc(5).
_FORGET = "5"
# M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of mallopt(3), and the bytes from which free memory is handed back.
_THRESHOLDS, _KEPT = (-1, -3), 64 << 10
# Seconds between two looks of the sampler.
_LOOK = 0.001


@dataclass(frozen=True)
class Growth:
    """What one process took."""

    nbytes: int
    """Largest resident memory, less that at the beginning."""
    how: str
    """``"VmHWM"``: as the kernel has it; ``"samples"``: as was seen every millisecond, which may miss the peak."""


class Watch:
    """Watches this process until its `end`.

    Parameters
    ----------
    sampled
        Look every millisecond, as is done where the kernel does not let its peak be reset.

    Notes
    -----
    Memory that is free and kept for later use is handed back, where the C library can: what takes it again would not be
    seen to grow. It stays so for the life of the process, and takes time: time is to be measured before. What threads
    keep goes with what they free next, so that the second of two equal things shows all that it takes.
    """

    def __init__(self, *, sampled: bool = False) -> None:
        _hand_back()
        self._sampler = _Sampler() if sampled or not _reset() else None
        self._before = _highest() if self._sampler is None else self._sampler.highest

    def end(self) -> Growth:
        """Return how far the memory has grown."""
        if self._sampler is None:
            return Growth(_highest() - self._before, "VmHWM")
        self._sampler.stop()
        return Growth(self._sampler.highest - self._before, "samples")


def _hand_back() -> None:
    gc.collect()
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        for threshold in _THRESHOLDS:
            library.mallopt(threshold, _KEPT)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)


def _reset() -> bool:
    """Have the kernel take the memory of now as the peak; return whether it does."""
    try:
        _CLEAR.write_text(_FORGET, encoding="ascii")
    except OSError:
        return False
    return True


def _highest() -> int:
    """Return the peak that the kernel knows."""
    lines = _STATUS.read_text(encoding="ascii", errors="replace").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


class _Sampler:
    """A thread that looks at the memory of the process."""

    def __init__(self) -> None:
        self._process, self._ended = psutil.Process(os.getpid()), threading.Event()
        self.highest = self._resident()
        self._thread = threading.Thread(target=self._run, name="workbench-memory", daemon=True)
        self._thread.start()

    def _resident(self) -> int:
        resident: int = self._process.memory_info().rss
        return resident

    def _run(self) -> None:
        while not self._ended.wait(_LOOK):
            self._look()

    def _look(self) -> None:
        self.highest = max(self.highest, self._resident())

    def stop(self) -> None:
        """Look once more, and end."""
        self._ended.set()
        self._thread.join()
        self._look()


# Of this process, when `begin` has been called.
_watches: list[Watch] = []


def begin() -> None:
    """Begin to watch this process; to be sent to it, as `end` later."""
    _watches.append(Watch())


def end() -> Growth:
    """Return what the watch that began last has seen."""
    return _watches.pop().end()
