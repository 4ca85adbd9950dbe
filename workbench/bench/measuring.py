"""Ratios of neighboring measurements, the peak of the memory of a process, and the CPU time of processes."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import statistics
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import comb
from pathlib import Path

import psutil

# Probability that the median lies outside of its interval, at most.
_OUTSIDE = 0.05


def figures(name: str, ours: Sequence[float], reference: Sequence[float]) -> dict[str, float]:
    """Return the median of the ratios of pairs, and its interval, by their names in a summary.

    Parameters
    ----------
    name
        Of the ratio.
    ours, reference
        Measurements in one unit; those at one place of both were made directly one after the other.

    Returns
    -------
    figures : dict
        `name`: the median of the ratios; `name` with ``_low`` and ``_high``: see `interval`.

    Raises
    ------
    ValueError
        If there are not as many of both.
    """
    ratios = [one / other for one, other in zip(ours, reference, strict=True)]
    low, high = interval(ratios)
    return {name: statistics.median(ratios), f"{name}_low": low, f"{name}_high": high}


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return two of the values that have the median of their distribution between them, in 95 of 100 cases at least.

    Parameters
    ----------
    values
        One or more, drawn independently of each other.

    Notes
    -----
    The number of values below the median of the distribution is binomial with a probability of 1/2, whatever the
    distribution is (H. A. David and H. N. Nagaraja, *Order Statistics*, 2003, section 7.1). Five values or fewer do not
    suffice for 95 of 100: n values have the median between the smallest and the largest one in 1 - 2**(1 - n) of cases.

    Examples
    --------
    >>> interval(range(1, 19))
    (5, 14)
    >>> interval([2.0, 1.0, 4.0])
    (1.0, 4.0)
    """
    number, ordered = len(values), sorted(values)
    below, tail = 0, 1
    while 2 * (tail + comb(number, below + 1)) <= _OUTSIDE * 2**number:
        below += 1
        tail += comb(number, below)
    return ordered[below], ordered[-1 - below]


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
    Free memory that the process keeps for later use is handed back, where the C library can, since its reuse would not
    show as growth. This lasts for the life of the process and takes time, so measure times before. The memory that
    threads keep is handed back with their next free, so the second of two equal steps shows all that the step takes.
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


@contextmanager
def halted(pids: Iterable[int]) -> Iterator[None]:
    """Stop these processes, and let them continue at the end: also an idle worker computes many times per second."""
    with ExitStack() as stack:
        for pid in pids:
            stack.callback(os.kill, pid, signal.SIGCONT)
            os.kill(pid, signal.SIGSTOP)
        yield


def cpu_seconds(head: int) -> dict[int, float]:
    """Return the CPU time in seconds, of user and system, of a head and all that it has started, by pid."""
    root = psutil.Process(head)
    found = {}
    for process in (root, *root.children(recursive=True)):
        times = process.cpu_times()
        found[process.pid] = times.user + times.system
    return found


def used(before: dict[int, float], after: dict[int, float]) -> float:
    """Return the CPU seconds between two looks at the same processes.

    Notes
    -----
    Processes that have come count from their start; of those that have ended nothing is known any more.
    """
    return sum(seconds - before.get(pid, 0.0) for pid, seconds in after.items())
