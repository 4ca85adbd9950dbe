"""Ends a process when its parent dies, also when the parent was killed with SIGKILL.

A rank ties itself to the daemon that started it. Between the head and ``mpiexec`` stands this module as a process of
its own, tied to the head: it ends ``mpiexec``, kills it if that hangs, and removes what it leaves. So no world
outlives its head, however the head ends.
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
_AWAITED = {signal.SIGTERM, signal.SIGCHLD}
# Seconds for mpiexec to end its ranks: some hang when they are asked while their ranks are ending by themselves.
_PATIENCE = 3.0


def set_signal(parent: int, number: signal.Signals) -> None:
    """Have the kernel send this process signal `number` when its parent is gone.

    Parameters
    ----------
    parent
        Pid that the parent is expected to have.
    number
        Signal to be sent.

    Notes
    -----
    Linux: ``prctl(PR_SET_PDEATHSIG)``, which holds across ``exec`` and works while the process is stuck in C
    code. Elsewhere nothing happens here: use `watch`.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        # It died before the call above.
        os.kill(os.getpid(), number)


def poll_parent(parent: int, interval: float = 1.0) -> None:
    """End this process when its parent is another one than `parent`; from a thread, for hosts without `set_signal`."""

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(interval)
        os._exit(1)

    threading.Thread(target=look, name="tether", daemon=True).start()


def command_line(folder: str, guard: str | None = None) -> list[str]:
    """Return the words in front of a command that tie the command, and `folder`, to this process.

    Parameters
    ----------
    guard
        Of a launcher of MPI whose ports are to answer this user only: `hosts` of `workbench.processes.guard.Guard`.
        None: of any other command.
    """
    return [*_program(guard), str(os.getpid()), folder]


def daemon_command_line(guard: str) -> list[str]:
    """Return the words in front of a launcher's daemon on another host, which tie the daemon to its parent there."""
    return [*_program(guard), "0", "-"]


def _program(guard: str | None) -> list[str]:
    options = [] if guard is None else ["--guard", guard]
    return [sys.executable, "-I", "-S", __file__, *options]


def main() -> NoReturn:
    """``parent_death.py [--guard HOSTS] PARENT FOLDER COMMAND ...``: run COMMAND while PARENT lives.

    FOLDER goes with PARENT. COMMAND is ended on SIGTERM, or when PARENT has died; this program ends as COMMAND does.
    If it is killed, so is COMMAND. With ``--guard`` no port of COMMAND, a launcher of MPI, answers another user.
    PARENT may be 0 for the process that has started this one, and FOLDER - for none.
    """
    guarded = sys.argv[1] == "--guard"
    hosts = sys.argv[2] if guarded else ""
    given, folder, *command = sys.argv[3 if guarded else 1 :]
    parent = int(given) or os.getppid()
    # Blocked and waited for, they cannot come at a bad moment.
    signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    set_signal(parent, signal.SIGTERM)
    child = _start_guarded(command, hosts) if guarded else _start(command)
    status = None
    while status is None:
        status = _end(child) if signal.sigwait(_AWAITED) == signal.SIGTERM else _status(child)
    if os.getppid() != parent and folder != "-":
        _remove(folder)
    if os.WIFSIGNALED(status):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _AWAITED)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status))


def _start(command: list[str], prepare: Callable[[], object] = lambda: None) -> int:
    """Start a command, tied to this process, and return its pid; the child calls `prepare` before."""
    this, child = os.getpid(), os.fork()
    if child == 0:
        try:
            set_signal(this, signal.SIGKILL)
            prepare()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _AWAITED)
            os.execvp(command[0], command)  # noqa: S606  (no shell is the point)
        except Exception as error:  # noqa: BLE001  (whatever happens, there must not be two tethers)
            os.write(2, f"workbench: cannot run {command[0]}: {error}\n".encode())
        finally:
            os._exit(1)
    return child


def _start_guarded(command: list[str], hosts: str) -> int:
    """Start a launcher of MPI and guard it; where the kernel has no means for that, start it with a warning."""
    import _socket as socket

    # This file runs as a program without the package; modules of the interpreter come first.
    sys.path.append(os.path.dirname(__file__))  # noqa: PTH120  (pathlib takes long to load)
    if TYPE_CHECKING:
        from workbench.processes import guard
    else:
        import guard

    try:
        if hosts:
            # Also where there is no guard: those of other hosts have to know this one.
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
        guarding = guard.Guard(ours, child, command[0], hosts)
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
        f"workbench: the launcher of MPI cannot be guarded against other users: {error}. Repair that, or set {setting} "
        f"to false, and every user of this host can command {command[0]}.\n"
    )
    os.write(2, text.encode())
    os._exit(1)


def _status(child: int) -> int | None:
    """Return how a child has ended, or None while it runs."""
    pid, status = os.waitpid(child, os.WNOHANG)
    return status if pid else None


def _end(child: int) -> int:
    """Ask a child to end, kill it if it does not, and return how it has ended."""
    os.kill(child, signal.SIGTERM)
    deadline = time.monotonic() + _PATIENCE
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
    with contextlib.suppress(OSError):  # other worlds of the cluster are there yet
        Path(folder).parent.rmdir()


if __name__ == "__main__":
    main()
