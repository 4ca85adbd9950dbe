"""The template of a node: a process that has imported what ranks need, and forks them."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import logging
import marshal
import os
import resource
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from workbench.fork import stub
from workbench.fork.become import TEMPLATE, become, rename
from workbench.log import debug_log
from workbench.processes import parent_death

# Seconds for a stub to send its order, and for the first stub to connect to a template without a head.
_ORDER, _FIRST = 10.0, 10.0
# Seconds until threads that have been joined are gone.
_JOINED = 1.0
# Files that one message can carry, and characters of a reason that a stub reads.
_FILES, _REASON = 250, 1000
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
    if threads() > 1:
        return "the interpreter has threads before anything is imported, of sitecustomize or of a .pth file"
    for name in filter(None, modules.split(",")):
        try:
            if name == "mpi4py.MPI":
                _only_load_mpi()
            module = importlib.import_module(name)
        except (Exception, SystemExit) as error:  # noqa: BLE001  (each rank imports the same, and fails with more words)
            traceback.print_exc()
            return f"the import of {name} failed: {error!r}"
        if threads() > 1:
            return f"the import of {name} starts threads"
        if shared := _generators(module):
            return f"{name}.{shared[0]} would draw the same random numbers on all ranks; make it in a function"
    return ""


def _generators(module: ModuleType) -> list[str]:
    """Return the names of what draws random numbers in a module and belongs to nobody else."""
    loaded = sys.modules
    kinds: tuple[type, ...] = (loaded["random"].Random,) if "random" in loaded else ()
    if "numpy.random" in loaded:
        numpy = loaded["numpy.random"]
        kinds += (numpy.Generator, numpy.RandomState, numpy.BitGenerator)
    return [name for name, value in vars(module).items() if isinstance(value, kinds)]


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
        if threads() > 1:
            logging.getLogger("workbench.head").warning(
                "the head has %d threads before it needs any, so each node's first rank starts its template", threads()
            )
            return
        try:
            if os.fork():
                return
        except OSError as error:
            logging.getLogger("workbench.head").warning("the head cannot fork the template of its node: %s", error)
            return
        try:
            parent_death.set_signal(head, signal.SIGKILL)
            os.setpgid(0, 0)
            # What the head has opened is the head's: ends of pipes, and files that it has locked.
            for number in [int(file.name) for file in Path("/proc/self/fd").iterdir()]:
                if number > 2 and number != listener.fileno():
                    with contextlib.suppress(OSError):  # the listing itself
                        os.close(number)
            _renew_logging()
            rename(TEMPLATE)
            Template.of(listener, modules, lasting=True).serve()
        except BaseException:  # noqa: BLE001  (whatever happens, there must not be two heads)
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(1)


def _renew_logging() -> None:
    """Have logs written as Dask writes them in a process where nobody has set up logging before: the head has."""
    import dask
    from distributed.config import initialize_logging

    logging.root.handlers.clear()
    logging.root.setLevel(logging.WARNING)
    initialize_logging(dask.config.config)


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
    preloaded
        The modules that ranks import from the template's memory, and not from the files of the user.
    lasting
        Whether the parent ends the template; otherwise the template ends after its last rank.
    """

    def __init__(
        self, listener: socket.socket, *, refusal: str = "", preloaded: Iterable[str] = (), lasting: bool = False
    ) -> None:
        self._listener, self._refusal, self._lasting = listener, refusal, lasting
        self._surroundings = stub.surroundings()
        self._written = {name: _written(name) for name in preloaded}
        # Connections of stubs by the pid of the rank, and those without an order.
        self._ranks: dict[int, socket.socket] = {}
        self._silent: dict[int, tuple[socket.socket, float]] = {}
        # What modules have installed when they were imported.
        self._handlers: dict[int, Any] = {}
        self._until = time.monotonic() + _FIRST
        # The end of a rank is written here.
        self._ends, self._wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    @classmethod
    def of(cls, listener: socket.socket, modules: str, *, lasting: bool = False) -> Template:
        """Return a template that has imported these modules, as of `load`."""
        refusal = load(modules)
        return cls(listener, refusal=refusal, preloaded=filter(None, modules.split(",")), lasting=lasting)

    def serve(self) -> None:
        """Fork ranks for stubs, and report to each stub how its rank ends."""
        debug_log.set_up()
        debug_log.started(os.getpid(), "the template of this node")
        for number in _IGNORED:
            self._handlers[number] = signal.signal(number, signal.SIG_IGN)
        self._handlers[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakes, warn_on_full_buffer=False)
        # There is a connection for each rank. The rank has the limits of its stub.
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        gc.collect()
        gc.freeze()
        waiting = select.poll()
        waiting.register(self._listener, select.POLLIN)
        waiting.register(self._ends, select.POLLIN)
        while not self._done():
            endless = (self._lasting or self._ranks) and not self._silent
            ready = dict(waiting.poll(None if endless else 1000))
            if self._ends in ready:
                os.read(self._ends, 4096)
            self._reap()
            for file in [file for file in ready if file in self._silent]:
                waiting.unregister(file)
                connection, _ = self._silent.pop(file)
                with _surviving(connection.close):
                    self._take(connection)
            for file in [file for file, (_, until) in self._silent.items() if time.monotonic() > until]:
                waiting.unregister(file)
                self._silent.pop(file)[0].close()
            if self._listener.fileno() in ready:
                with _surviving():
                    self._accept(waiting)
        debug_log.ended(os.getpid(), 0, "the template of this node")

    def _accept(self, waiting: select.poll) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # no file is free
            time.sleep(0.1)
            raise
        if stub.peer_user(connection) != os.geteuid():
            connection.close()
            raise PermissionError("another user has connected")
        self._silent[connection.fileno()] = connection, time.monotonic() + _ORDER
        waiting.register(connection, select.POLLIN)

    def _take(self, connection: socket.socket) -> None:
        order, files = _receive(connection)
        self._until = 0.0
        try:
            reason = (
                self._refusal
                or stub.difference(order["surroundings"], self._surroundings)
                or self._several_threads()
                or self._changed()
            )
            if not reason:
                self._fork(order, files, connection)
        except OSError as error:
            reason = f"fork failed: {error}"
        finally:
            for number in files:
                os.close(number)
        if reason:
            connection.sendall(stub.REFUSED + reason[:_REASON].encode() + b"\0")
            connection.close()

    def _fork(self, order: dict[str, Any], files: list[int], connection: socket.socket) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        if pid := os.fork():
            self._ranks[pid] = connection
            debug_log.started(pid, "a rank")
            return
        try:
            # Of the template's own files the rank keeps none.
            signal.set_wakeup_fd(-1)
            for number in (self._listener.fileno(), self._ends, self._wakes):
                os.close(number)
            for other in (*self._ranks.values(), *(silent for silent, _ in self._silent.values())):
                other.close()
            become(order, files, connection, self._handlers)
        except BaseException:  # noqa: BLE001  (whatever happens, there must not be two templates)
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)

    @staticmethod
    def _several_threads() -> str:
        return f"the template has {threads()} threads" if threads() > 1 else ""

    def _changed(self) -> str:
        changed = [name for name, written in self._written.items() if _written(name) != written]
        return f"{changed[0]} has changed since the template imported it" if changed else ""

    def _reap(self) -> None:
        while self._ranks:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            debug_log.ended(pid, os.waitstatus_to_exitcode(status), "a rank")
            if connection := self._ranks.pop(pid, None):
                with contextlib.suppress(OSError):  # the stub was killed, and its rank with it
                    connection.sendall(stub.ENDED + status.to_bytes(4, sys.byteorder))
                connection.close()

    def _done(self) -> bool:
        """Return whether nobody needs the template any more; then no stub can connect."""
        if self._lasting or self._ranks or self._silent or time.monotonic() < self._until:
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


@contextlib.contextmanager
def _surviving(on_error: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Print what fails for one stub: the other stubs still need the template."""
    try:
        yield
    except Exception:  # noqa: BLE001  (whatever a stub sends)
        traceback.print_exc()
        on_error()


def _written(name: str) -> int:
    """Return when the file of a module was last written, in nanoseconds; 0 if the module has none."""
    try:
        return os.stat(sys.modules[name].__file__ or "").st_mtime_ns  # noqa: PTH116  (once for each rank)
    except (AttributeError, KeyError, OSError):
        return 0


def _receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Return what a stub orders, and the files that come with it.

    Raises
    ------
    EOFError
        If the stub has ended.
    """
    connection.settimeout(_ORDER)
    head, files, _, _ = socket.recv_fds(connection, 8, _FILES)
    try:
        order = _read(connection, int.from_bytes(head, "big"))
    except BaseException:
        for number in files:
            os.close(number)
        raise
    return order, files


def _read(connection: socket.socket, size: int) -> dict[str, Any]:
    text = bytearray()
    while len(text) < size or not size:
        if not (more := connection.recv(1 << 20)):
            raise EOFError("a stub ended before it had sent its order")
        text += more
    connection.settimeout(None)
    order: dict[str, Any] = marshal.loads(text)  # noqa: S302  (of a process of this user)
    return order
