"""Which machine and process this is, in words that another process on a shared home can compare."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path


def _first_line(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


@dataclass(frozen=True)
class ProcessId:
    """One process of one host, safe against the reuse of its number.

    Notes
    -----
    Homes are shared by many hosts, hosts are rebooted and containers number their processes anew: a bare
    pid says nothing. `alive` answers None where it cannot know.
    """

    host: str
    """Host name."""
    machine: str
    """Identity of the installation (``/etc/machine-id``): two hosts may have one name."""
    boot: str
    """Identity of the boot: pids of an earlier one are gone."""
    namespace: str
    """Pid namespace: another one numbers its processes differently."""
    pid: int
    """Process number."""
    started: float
    """When the process started, by its kernel's own clock (ticks or seconds; only compared)."""

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        """Return the identity of a process of this host."""
        return cls(
            host=socket.gethostname(),
            machine=_first_line("/etc/machine-id"),
            boot=_first_line("/proc/sys/kernel/random/boot_id"),
            namespace=_pid_namespace(),
            pid=pid,
            started=start_time(pid) or 0.0,
        )

    @classmethod
    def here(cls) -> ProcessId:
        """Return the identity of this process."""
        return cls.of(os.getpid())

    @property
    def is_local(self) -> bool:
        """Whether the process was started on this very host, in this boot or an earlier one."""
        return (self.host, self.machine) == (socket.gethostname(), _first_line("/etc/machine-id"))

    def alive(self) -> bool | None:
        """Tell whether the process still runs; None where that cannot be seen from here."""
        if not self.is_local:
            return None
        if self.boot != _first_line("/proc/sys/kernel/random/boot_id"):
            return False
        if self.namespace != _pid_namespace():
            return None
        return self.pid > 0 and start_time(self.pid) == self.started


def start_time(pid: int) -> float | None:
    """Return when process `pid` started, or None if there is none (or only a zombie is left).

    The start time in ``/proc`` counts ticks since the boot and so, unlike a time of day, never shifts
    when the clock is set.
    """
    if Path("/proc/self").is_dir():
        try:
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            return None
        return None if fields[0] in (b"Z", b"X") else float(fields[19])
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else float(process.create_time())
    except psutil.Error:
        return None
