"""What the operating system counts for a process and for a node: CPU, memory, files, network."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import psutil

from workbench.metrics.schema import COUNTERS, NODE

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class ProcessUsage:
    """What a process has used so far, and has now."""

    time: float
    """When this was measured, in seconds of `time.monotonic`."""
    values: Mapping[str, float]
    """By the names of `RANK`, totals so far of `COUNTERS`; 0 where the system has no number."""

    def since(self, before: ProcessUsage) -> dict[str, float]:
        """Return the numbers of the time between two measurements: rates for totals."""
        passed = max(self.time - before.time, 1e-3)
        return {
            name: (value - before.values[name]) / passed if name in COUNTERS else value
            for name, value in self.values.items()
        }


def process_usage(of: psutil.Process) -> ProcessUsage:
    """Measure a process; raises `psutil.NoSuchProcess` if the process has ended."""
    with of.oneshot():
        # the kernel counts in ticks of 10 ms for others, and by a clock for the process itself
        cpu = time.process_time() if of.pid == os.getpid() else sum(of.cpu_times()[:2])
        read = written = 0
        # not on every system, and not in every container
        with contextlib.suppress(psutil.AccessDenied, AttributeError):
            files = of.io_counters()
            read, written = files.read_bytes, files.write_bytes
        values = {
            "cpu": 100 * cpu,
            "memory": float(of.memory_info().rss),
            "threads": float(of.num_threads()),
            "read": float(read),
            "written": float(written),
        }
        return ProcessUsage(time.monotonic(), values)


class NodeUsage:
    """What a node has used between two samples."""

    def __init__(self) -> None:
        self._time = time.monotonic()
        self._totals = _totals()
        self._busy, self._all = _cores()

    def sample(self) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
        """Return what the node has used since the last sample.

        Returns
        -------
        node : ndarray of float32, shape (len(NODE),)
            As `workbench.metrics.schema.NODE` has it.
        cores : ndarray of uint8, shape (cores,)
            Percent of the time that each core was busy.
        """
        now, totals = time.monotonic(), _totals()
        passed = max(now - self._time, 1e-3)
        rates = {name: max(0.0, total - self._totals.get(name, total)) / passed for name, total in totals.items()}
        memory = psutil.virtual_memory()
        rates |= {"memory": float(memory.total - memory.available), "memory_total": float(memory.total)}
        busy, everything = _cores()
        if busy.shape == self._busy.shape:
            spent = np.maximum(everything - self._all, 1e-9)
            percent = np.clip(np.rint(100 * (busy - self._busy) / spent), 0, 100).astype(np.uint8)
        else:  # a core has come or gone
            percent = np.zeros(busy.shape, np.uint8)
        self._time, self._totals, self._busy, self._all = now, totals, busy, everything
        return np.array([rates.get(name, 0.0) for name in NODE], np.float32), percent


def _cores() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the seconds that each core was busy, and all its seconds."""
    times = [core._asdict() for core in psutil.cpu_times(percpu=True)]
    idle = np.array([core["idle"] + core.get("iowait", 0.0) for core in times])
    # the time of guests is in that of users already
    everything = np.array([sum(core.values()) - core.get("guest", 0.0) - core.get("guest_nice", 0.0) for core in times])
    return everything - idle, everything


def _totals() -> Mapping[str, float]:
    """Return bytes so far by network and disk; what the system does not count is missing."""
    totals: dict[str, float] = {}
    with contextlib.suppress(OSError, RuntimeError):
        if network := psutil.net_io_counters():
            totals |= {"net_received": network.bytes_recv, "net_sent": network.bytes_sent}
    with contextlib.suppress(OSError, RuntimeError):
        if disk := psutil.disk_io_counters():
            totals |= {"read": disk.read_bytes, "written": disk.write_bytes}
    return totals
