"""Processes of this host: their identity, their end, and the files that they have open."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.errors import InvalidRequest

if TYPE_CHECKING:
    from asyncio.subprocess import Process

# Seconds for a killed process to end.
_KILLED = 1.0


async def end(process: Process, timeout: float, name: str, request: Callable[[], object] | None = None) -> None:
    """Return when a process has ended: on `request` (default: SIGTERM), or killed after `timeout` seconds.

    `name` describes the process in the log.

    Notes
    -----
    Before CPython 3.12 `asyncio.subprocess.Process.wait` also waits until no process has the pipes of the process. A
    child of the process may keep them, as ``ssh`` does with ``ControlPersist``. So every wait has a deadline, and the
    pipes are closed here.
    """
    # Not above: the command and the ranks use the other functions.
    import asyncio

    from workbench.host import debug_log

    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            (request or process.terminate)()
        try:
            async with asyncio.timeout(timeout):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_KILLED):
                    await process.wait()
    process._transport.close()  # type: ignore[attr-defined]  # noqa: SLF001  (asyncio has no public way)
    debug_log.ended(process.pid, process.returncode, "%s", name)


# The requested limit. Dask uses at most half of the files for connections.
_WANTED = 65536
# Connections of a head other than those to ranks in a call: to clients, and to ranks for their state.
_OTHER_CONNECTIONS = 64


def allow_many_files() -> None:
    """Raise the limit of open files of this process and its later children, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(hard, _WANTED)
    if resource.RLIM_INFINITY != soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def open_files_limit() -> int:
    """Return the limit of open files of this process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _WANTED if soft == resource.RLIM_INFINITY else soft


def check_open_files(ranks: int) -> None:
    """Raise InvalidRequest if a head with the limit of this process cannot have calls on `ranks` ranks.

    A call holds a connection to each rank. Dask's scheduler uses at most half of the files for connections, and waits
    without a deadline when all are in use, so the call would never end.
    """
    valid = open_files_limit() // 2 - _OTHER_CONNECTIONS
    if ranks > valid:
        raise InvalidRequest(
            f"{ranks} ranks are too many: the head may open {open_files_limit()} files, enough for {valid} ranks.",
            option="ranks",
            given=ranks,
            allowed=f"up to {valid}",
            hint="Start fewer ranks, or ask your administrator to raise the hard limit on the node of the head (nofile "
            "in /etc/security/limits.conf; ulimit -Hn prints the limit).",
        )


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
