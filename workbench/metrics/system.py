"""Counters of the operating system for a process and for a node: CPU, memory, files, network."""

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
    """The resource usage of a process."""

    time: float
    """Time of the measurement, in seconds of `time.monotonic`."""
    values: Mapping[str, float]
    """By the names of `RANK`, with totals so far for `COUNTERS`; 0 where the system has no number."""

    def since(self, before: ProcessUsage) -> dict[str, float]:
        """Return the numbers of the time since an earlier measurement, with rates for totals."""
        passed = max(self.time - before.time, 1e-3)
        return {
            name: (value - before.values[name]) / passed if name in COUNTERS else value
            for name, value in self.values.items()
        }


def process_usage(process: psutil.Process) -> ProcessUsage:
    """Measure a process; raises `psutil.NoSuchProcess` if the process has ended."""
    with process.oneshot():
        # For other processes the kernel counts in ticks of 10 ms; a process can read its own clock.
        cpu = time.process_time() if process.pid == os.getpid() else sum(process.cpu_times()[:2])
        read = written = 0
        # Some systems and containers have no counters of files.
        with contextlib.suppress(psutil.AccessDenied, AttributeError):
            files = process.io_counters()
            read, written = files.read_bytes, files.write_bytes
        values = {
            "cpu": 100 * cpu,
            "memory": float(process.memory_info().rss),
            "threads": float(process.num_threads()),
            "read": float(read),
            "written": float(written),
        }
        return ProcessUsage(time.monotonic(), values)


class NodeUsage:
    """The resource usage of a node between two samples."""

    def __init__(self) -> None:
        self._time = time.monotonic()
        self._totals = _totals()
        self._busy, self._all = _cores()

    def sample(self) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
        """Return the numbers of `NODE` and the busy percent of each core, since the last sample."""
        now, totals = time.monotonic(), _totals()
        passed = max(now - self._time, 1e-3)
        rates = {name: max(0.0, total - self._totals.get(name, total)) / passed for name, total in totals.items()}
        memory = psutil.virtual_memory()
        rates |= {"memory": float(memory.total - memory.available), "memory_total": float(memory.total)}
        busy, everything = _cores()
        if busy.shape == self._busy.shape:
            spent = np.maximum(everything - self._all, 1e-9)
            percent = np.clip(np.rint(100 * (busy - self._busy) / spent), 0, 100).astype(np.uint8)
        else:  # the number of cores has changed
            percent = np.zeros(busy.shape, np.uint8)
        self._time, self._totals, self._busy, self._all = now, totals, busy, everything
        return np.array([rates.get(name, 0.0) for name in NODE], np.float32), percent


def _cores() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the busy seconds of each core, and all its seconds."""
    times = [core._asdict() for core in psutil.cpu_times(percpu=True)]
    idle = np.array([core["idle"] + core.get("iowait", 0.0) for core in times])
    # The user time includes the time of guests.
    everything = np.array([sum(core.values()) - core.get("guest", 0.0) - core.get("guest_nice", 0.0) for core in times])
    return everything - idle, everything


def _totals() -> Mapping[str, float]:
    """Return the bytes of network and disk so far, if the system counts them."""
    totals: dict[str, float] = {}
    with contextlib.suppress(OSError, RuntimeError):
        # The loopback device has the traffic between processes of the node.
        network = [device for name, device in psutil.net_io_counters(pernic=True).items() if name != "lo"]
        totals["net_received"] = sum(device.bytes_recv for device in network)
        totals["net_sent"] = sum(device.bytes_sent for device in network)
    with contextlib.suppress(OSError, RuntimeError):
        if disk := psutil.disk_io_counters():
            totals |= {"read": disk.read_bytes, "written": disk.write_bytes}
    return totals
