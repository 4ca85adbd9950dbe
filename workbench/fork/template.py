"""The template of a node: a process that has imported what ranks need, and forks them."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import logging
import marshal
import os
import select
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from workbench import tether
from workbench.fork import stub
from workbench.fork.become import TEMPLATE, become, rename

# Seconds for a stub to send its order, and for the first stub to connect to a template without a head.
_ORDER, _FIRST = 10.0, 10.0
# Seconds until threads that have been joined are gone.
_JOINED = 1.0
# Files that one message can carry.
_FILES = 250
# Signals that end a whole job reach the template too. Its ranks end as their stubs do, and the template after them.
_IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)


def load(modules: str) -> str:
    """Import modules, whose names are separated by commas.

    Returns
    -------
    refusal : str
        Why ranks cannot be forked afterwards; empty if they can.
    """
    # Modules are not garbage: looking for some among them is a tenth of the time that their import takes.
    gc.disable()
    for name in filter(None, modules.split(",")):
        try:
            if name == "mpi4py.MPI":
                _only_load_mpi()
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001  (each rank imports the same, and fails with more words)
            traceback.print_exc()
            return f"the import of {name} failed: {error!r}"
        if threads() > 1:
            return f"the import of {name} starts threads"
    return ""


def _only_load_mpi() -> None:
    """Have the import of mpi4py.MPI load the library and leave MPI_Init to the ranks."""
    import mpi4py

    mpi4py.rc.initialize = False
    mpi4py.rc.finalize = False


def threads() -> int:
    """Return the number of threads of this process, those of libraries included."""
    return len(list(Path("/proc/self/task").iterdir()))


def fork_template(listener: socket.socket, modules: str) -> None:
    """Fork the template of this node off this process, the head, which has imported most of it already.

    Parameters
    ----------
    listener
        Where stubs connect; closed here.
    modules
        As of `load`, for the template alone.

    Notes
    -----
    Called from the main thread, whose end would end the template, and while this process has no other thread.
    """
    head = os.getpid()
    _await_one_thread()
    with listener:
        sys.stdout.flush()
        sys.stderr.flush()
        if threads() > 1 or os.fork():
            return
        try:
            tether.tie(head, signal.SIGKILL)
            os.setpgid(0, 0)
            # What the head has opened is the head's: ends of pipes, and files that it has locked.
            for number in [int(file.name) for file in Path("/proc/self/fd").iterdir()]:
                if number > 2 and number != listener.fileno():
                    with contextlib.suppress(OSError):  # the listing itself
                        os.close(number)
            logging.root.handlers.clear()
            logging.root.setLevel(logging.WARNING)
            rename(TEMPLATE)
            Template(listener, refusal=load(modules), lasting=True).serve()
        finally:
            os._exit(1)


def _await_one_thread() -> None:
    """Wait a moment for threads that have been joined: the system may have them for a little longer."""
    deadline = time.monotonic() + _JOINED
    while threads() > 1 and time.monotonic() < deadline:
        time.sleep(0.001)


class Template:
    """Forks the ranks of one node for the stubs that connect.

    Parameters
    ----------
    listener
        Where stubs connect.
    refusal
        Why no rank can be forked; empty if ranks can.
    lasting
        Whether the parent ends the template; otherwise the template ends after its last rank.
    """

    def __init__(self, listener: socket.socket, *, refusal: str = "", lasting: bool = False) -> None:
        self._listener, self._refusal, self._lasting = listener, refusal, lasting
        self._surroundings = stub.surroundings()
        self._ranks: dict[int, socket.socket] = {}
        self._until = time.monotonic() + _FIRST
        # The end of a rank is written here.
        self._ends, self._wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def serve(self) -> None:
        """Fork ranks for stubs, and report to each stub how its rank ends."""
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakes, warn_on_full_buffer=False)
        gc.collect()
        gc.freeze()
        waiting = select.poll()
        waiting.register(self._listener, select.POLLIN)
        waiting.register(self._ends, select.POLLIN)
        while not self._done():
            ready = dict(waiting.poll(None if self._lasting or self._ranks else 1000))
            if self._ends in ready:
                os.read(self._ends, 4096)
            self._reap()
            if self._listener.fileno() in ready:
                connection, _ = self._listener.accept()
                try:
                    self._take(connection)
                except Exception:  # noqa: BLE001  (one stub must not take the others' template)
                    traceback.print_exc()
                    connection.close()

    def _take(self, connection: socket.socket) -> None:
        if stub.peer_user(connection) != os.geteuid():
            raise PermissionError("somebody else has connected")
        order, files = _receive(connection)
        self._until = 0.0
        try:
            reason = (
                self._refusal or stub.difference(order["surroundings"], self._surroundings) or self._several_threads()
            )
            if not reason:
                self._fork(order, files, connection)
        except OSError as error:
            reason = f"fork failed: {error}"
        finally:
            for number in files:
                os.close(number)
        if reason:
            connection.sendall(stub.REFUSED + reason.encode())
            connection.close()

    def _fork(self, order: dict[str, Any], files: list[int], connection: socket.socket) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        if pid := os.fork():
            self._ranks[pid] = connection
            return
        try:
            # Of the template's own files the rank keeps none.
            signal.set_wakeup_fd(-1)
            for number in (self._listener.fileno(), self._ends, self._wakes):
                os.close(number)
            for other in self._ranks.values():
                other.close()
            become(order, files, connection)
        except BaseException:  # noqa: BLE001  (whatever happens, there must not be two templates)
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)

    def _several_threads(self) -> str:
        return f"the template has {threads()} threads" if threads() > 1 else ""

    def _reap(self) -> None:
        while self._ranks:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            if connection := self._ranks.pop(pid, None):
                with contextlib.suppress(OSError):  # the stub was killed, and its rank with it
                    connection.sendall(status.to_bytes(4, sys.byteorder))
                connection.close()

    def _done(self) -> bool:
        """Return whether nobody needs the template any more; then no stub can connect."""
        if self._lasting or self._ranks or time.monotonic() < self._until:
            return False
        path = Path(self._listener.getsockname())
        try:
            # Stubs connect while they hold the lock.
            with open(path.with_name(stub.LOCK), "rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if select.select([self._listener], [], [], 0)[0]:
                    return False
                path.unlink()
        except BlockingIOError:
            return False
        except FileNotFoundError:
            pass  # the folder has been removed
        return True


def _receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Return what a stub orders, and the files that come with it.

    Raises
    ------
    EOFError
        If the stub has ended.
    """
    connection.settimeout(_ORDER)
    head, files, _, _ = socket.recv_fds(connection, 8, _FILES)
    text = bytearray()
    while len(text) < int.from_bytes(head, "big"):
        if not (more := connection.recv(1 << 20)):
            raise EOFError("a stub ended while it sent its order")
        text += more
    if not head:
        raise EOFError("a stub ended before it sent its order")
    connection.settimeout(None)
    order: dict[str, Any] = marshal.loads(text)  # noqa: S302  (of a process of this user)
    return order, files
