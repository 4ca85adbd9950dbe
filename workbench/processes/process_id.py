"""The identity of a process and its machine, which another process on a shared home can compare."""

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
    """One process of one host, safe against the reuse of its pid.

    Many hosts share a home, hosts are rebooted, and containers have separate pids, so a pid alone does not identify a
    process. `alive` returns None if this host cannot know.
    """

    host: str
    """Host name."""
    machine: str
    """Id of the installation (``/etc/machine-id``), because two hosts may have the same name."""
    boot: str
    """Id of the boot. Processes of an earlier boot have ended."""
    namespace: str
    """Pid namespace. Pids of different namespaces cannot be compared."""
    pid: int
    """Id of the process."""
    started: float
    """Start time by the clock of the kernel (ticks or seconds; only compared)."""

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
        """Whether the process was started on this host, in this or an earlier boot."""
        return (self.host, self.machine) == (socket.gethostname(), _first_line("/etc/machine-id"))

    def alive(self) -> bool | None:
        """Return whether the process still runs, or None if that is not visible from here."""
        if not self.is_local:
            return None
        if self.boot != _first_line("/proc/sys/kernel/random/boot_id"):
            return False
        if self.namespace != _pid_namespace():
            return None
        return self.pid > 0 and start_time(self.pid) == self.started


def start_time(pid: int) -> float | None:
    """Return when process `pid` started, or None if it does not exist or is a zombie.

    The start time in ``/proc`` counts ticks since the boot, so it does not change when the clock is set.
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


def exit_code(pid: int) -> int | None:
    """Return the exit code of a process that ends, negative for a signal, or None if it runs or is not known any more.

    A process closes its connections before its parent learns the code, which is in ``/proc`` meanwhile.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        status = int(fields[49])
    except (OSError, IndexError):
        return None
    return os.waitstatus_to_exitcode(status) if status or fields[0] in (b"Z", b"X") else None
