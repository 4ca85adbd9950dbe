"""Ends a process when its parent dies, also when the parent was killed with SIGKILL.

A rank ties itself to the daemon that started the rank. Between the head and ``mpiexec``, this module runs as a separate
process, the tether, which is tied to the head. It ends ``mpiexec``, kills ``mpiexec`` if it hangs, and removes its
files. So no world outlives its head.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

_PR_SET_PDEATHSIG = 1
_SIGNALS = {signal.SIGTERM, signal.SIGCHLD}
# Seconds for mpiexec to end its ranks. Some launchers hang if they get SIGTERM while their ranks are ending.
_STOP_TIMEOUT = 3.0


def set_signal(parent: int, number: signal.Signals) -> None:
    """Make the kernel send signal `number` to this process when its parent, the process `parent`, has ended.

    Linux uses ``prctl(PR_SET_PDEATHSIG)``, which also holds after ``exec`` and while the process is blocked in C
    code. On other systems use `poll_parent`.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        # The parent ended before the call above.
        os.kill(os.getpid(), number)


def poll_parent(parent: int, interval: float = 1.0) -> None:
    """End this process when its parent is not `parent` any more, with a thread, for hosts without `set_signal`."""

    def poll() -> None:
        while os.getppid() == parent:
            time.sleep(interval)
        os._exit(1)

    threading.Thread(target=poll, name="tether", daemon=True).start()


def command_line(folder: str, guard: str | None = None) -> list[str]:
    """Return the prefix of a command line that ties the command, and `folder`, to this process.

    For a launcher of MPI whose ports must accept only this user, `guard` is the `hosts` of
    `workbench.host.guard.Guard`.
    """
    return [*_program(guard), str(os.getpid()), folder]


def daemon_command_line(guard: str) -> list[str]:
    """Return the prefix for a launcher's daemon on another host, which ties the daemon to its parent there."""
    return [*_program(guard), "0", "-"]


def _program(guard: str | None) -> list[str]:
    options = [] if guard is None else ["--guard", guard]
    return [sys.executable, "-I", "-S", __file__, *options]


def main() -> NoReturn:
    """``parent_death.py [--guard HOSTS] PARENT FOLDER COMMAND ...``: run COMMAND while PARENT is alive.

    SIGTERM or the death of PARENT ends COMMAND, and the death of PARENT also removes FOLDER. This program ends with the
    status of COMMAND, and the kernel kills COMMAND if this program is killed. With ``--guard``, the ports of COMMAND, a
    launcher of MPI, accept this user only. PARENT 0 is the parent of this process, and FOLDER - is no folder.
    """
    guarded = sys.argv[1] == "--guard"
    hosts = sys.argv[2] if guarded else ""
    pid, folder, *command = sys.argv[3 if guarded else 1 :]
    parent = int(pid) or os.getppid()
    # The kernel does not report the end of a child if an ancestor of this process has ignored SIGCHLD.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # Blocked signals are received only in sigwait().
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    set_signal(parent, signal.SIGTERM)
    child = _start_guarded(command, hosts) if guarded else _start(command)
    status = None
    while status is None:
        status = _end(child) if signal.sigwait(_SIGNALS) == signal.SIGTERM else _status(child)
    if os.getppid() != parent and folder != "-":
        _remove(folder)
    if os.WIFSIGNALED(status):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status))


def _start(command: list[str], prepare: Callable[[], object] = lambda: None) -> int:
    """Start a command that is tied to this process, after `prepare()` in the child, and return its pid."""
    this, child = os.getpid(), os.fork()
    if child == 0:
        try:
            set_signal(this, signal.SIGKILL)
            prepare()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            os.execvp(command[0], command)  # noqa: S606  (no shell on purpose)
        except Exception as error:  # noqa: BLE001  (after any error, the child must not continue as a second tether)
            os.write(2, f"workbench: cannot run {command[0]}: {error}\n".encode())
        finally:
            os._exit(1)
    return child


def _start_guarded(command: list[str], hosts: str) -> int:
    """Start a launcher of MPI with a guard, or with a warning if the kernel does not support a guard."""
    import _socket as socket

    # This file runs as a program without the package. Modules of the interpreter stay first on the path.
    sys.path.append(os.path.dirname(__file__))  # noqa: PTH120  (pathlib takes long to load)
    if TYPE_CHECKING:
        from workbench.host import guard
    else:
        import guard

    try:
        if hosts:
            # The guards of other hosts need these addresses, also if this host has no guard.
            guard.publish(hosts)
        ours, theirs = socket.socketpair()
    except OSError as error:
        _refuse(guard.SETTING, command, error)

    def prepare() -> None:
        ours.close()
        guard.install(theirs)

    child = _start(command, prepare)
    theirs.close()
    try:
        guarding = guard.Guard(ours, child, hosts)
    except OSError as error:
        ours.close()
        os.waitpid(child, 0)
        if not guard.lacks(error):
            _refuse(guard.SETTING, command, error)
        guard.report(
            f"every user of this host can connect to the ports of {command[0]}, which {guard.UNGUARDED}: {error} "
            f"(setting {guard.SETTING})"
        )
        return _start(command)

    def serve() -> None:
        try:
            guarding.serve()
        except BaseException as error:
            guard.report(f"the guard of the MPI launcher has failed, which ends the world: {error!r}")
            os.kill(os.getpid(), signal.SIGTERM)
            raise

    threading.Thread(target=serve, name="guard", daemon=True).start()
    return child


def _refuse(setting: str, command: list[str], error: OSError) -> NoReturn:
    text = (
        f"workbench: the launcher of MPI cannot be guarded against other users: {error}. Repair the cause, or set "
        f"{setting} to false. Without the guard every user of this host can send commands to {command[0]}.\n"
    )
    os.write(2, text.encode())
    os._exit(1)


def _status(child: int) -> int | None:
    """Return the wait status of a child, or None while the child runs."""
    pid, status = os.waitpid(child, os.WNOHANG)
    return status if pid else None


def _end(child: int) -> int:
    """Send SIGTERM to a child, kill the child after a timeout, and return its wait status."""
    os.kill(child, signal.SIGTERM)
    deadline = time.monotonic() + _STOP_TIMEOUT
    while time.monotonic() < deadline:
        if (status := _status(child)) is not None:
            return status
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


def _remove(folder: str) -> None:
    import shutil
    from pathlib import Path

    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):  # other worlds of the cluster still use the folder
        Path(folder).parent.rmdir()


if __name__ == "__main__":
    main()
