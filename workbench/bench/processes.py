"""Processes of a cluster: the CPU time that they take, and how they are stopped while another arm computes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

import psutil


@contextmanager
def halted(pids: Iterable[int]) -> Iterator[None]:
    """Stop these processes, and let them continue at the end: also an idle worker computes many times a second."""
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
