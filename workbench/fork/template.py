"""The template of a node: a process that has imported the modules of ranks, and forks the ranks."""

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

from workbench.fork.become import TEMPLATE, Variables, append_directory, become, rename
from workbench.host import debug_log, parent_death, stub
from workbench.text import exit_description

# Seconds for a stub to send its order, and for the first stub to connect to a template without a head.
_ORDER_TIMEOUT, _FIRST_STUB_TIMEOUT = 10.0, 10.0
# Seconds for a head to read how a rank has ended: the connections of the rank break before that.
_REMEMBER = 5.0
# Seconds until the system has removed joined threads.
_JOIN_TIMEOUT = 1.0
# Files that one message can carry, and characters of a reason that a stub reads.
_MAX_FILES, _MAX_REASON = 250, 1000
# Signals that end a whole job reach the template too. Its ranks end with their stubs, and the template after its ranks.
_IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)


def load(modules: str) -> str:
    """Import modules, separated by commas; return why ranks cannot be forked then, or an empty string."""
    # Modules are not garbage, and the collector would take a tenth of the time of their import.
    gc.disable()
    if threads() > 1:
        return "the interpreter has threads before the first import; sitecustomize or a .pth file starts these threads"
    names = [*filter(None, modules.split(","))]
    for name in names:
        try:
            if name == "mpi4py.MPI":
                _only_load_mpi()
            module = importlib.import_module(name)
            names += getattr(module, "PRELOAD", ())  # what the first uses of a package import
        except (Exception, SystemExit) as error:  # noqa: BLE001  (each rank then shows the error)
            traceback.print_exc()
            return f"the import of {name} failed: {error!r}"
        if threads() > 1:
            return f"the import of {name} starts threads"
        if shared := _generators(module):
            return f"{name}.{shared[0]} would draw the same random numbers on all ranks; create it in a function"
    return ""


def _generators(module: ModuleType) -> list[str]:
    """Return the names of the random number generators in a module."""
    loaded = sys.modules
    kinds: tuple[type, ...] = (loaded["random"].Random,) if "random" in loaded else ()
    if "numpy.random" in loaded:
        numpy = loaded["numpy.random"]
        kinds += (numpy.Generator, numpy.RandomState, numpy.BitGenerator)
    return [name for name, value in vars(module).items() if isinstance(value, kinds)]


def _only_load_mpi() -> None:
    """Configure mpi4py so that its import loads the library, and the ranks call MPI_Init."""
    import mpi4py

    mpi4py.rc.initialize = False
    mpi4py.rc.finalize = False


def threads() -> int:
    """Return the number of threads of this process, including those of libraries."""
    return len(list(Path("/proc/self/task").iterdir()))


def fork_template(listener: socket.socket, modules: str) -> None:
    """Fork the template of this node from this process, the head, which has already imported most modules.

    Parameters
    ----------
    listener
        The socket for stubs, which is closed in the head.
    modules
        Additional modules for the template, as for `load`.

    Notes
    -----
    Called from the main thread, because the end of the calling thread ends the template, and without other threads.
    """
    head = os.getpid()
    _wait_for_one_thread()
    with listener:
        sys.stdout.flush()
        sys.stderr.flush()
        if threads() > 1:
            logging.getLogger("workbench.head").warning(
                "the head has %d threads too early, so the first rank on each node starts its template", threads()
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
            # Files of the head must not stay open here: ends of pipes, and locked files.
            for number in [int(file.name) for file in Path("/proc/self/fd").iterdir()]:
                if number > 2 and number != listener.fileno():
                    with contextlib.suppress(OSError):  # the file of the listing
                        os.close(number)
            _renew_logging()
            rename(TEMPLATE)
            Template.of(listener, modules, lasting=True).serve()
        except BaseException:  # noqa: BLE001  (after any error, this process must not continue as a second head)
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(1)


def _renew_logging() -> None:
    """Replace the logging of the head with Dask's defaults."""
    import dask
    from distributed.config import initialize_logging

    logging.root.handlers.clear()
    logging.root.setLevel(logging.WARNING)
    initialize_logging(dask.config.config)


def _wait_for_one_thread() -> None:
    """Wait until the system has removed joined threads."""
    deadline = time.monotonic() + _JOIN_TIMEOUT
    while threads() > 1 and time.monotonic() < deadline:
        time.sleep(0.001)


class Template:
    """Forks the ranks of one node for the stubs that connect.

    Parameters
    ----------
    listener
        The socket for stubs.
    refusal
        Why no rank can be forked; empty if ranks can.
    preloaded
        The modules that ranks get from the template's memory. Their files must not change.
    imported
        The variables that the imports have changed: the values before and after, None without the variable.
    lasting
        Whether the parent ends the template. Otherwise the template ends after its last rank.
    """

    def __init__(
        self,
        listener: socket.socket,
        *,
        refusal: str = "",
        preloaded: Iterable[str] = (),
        imported: Variables | None = None,
        lasting: bool = False,
    ) -> None:
        self._listener, self._refusal, self._lasting = listener, refusal, lasting
        self._imported = imported or {}
        self._surroundings = stub.surroundings()
        self._mtimes = {name: _mtime(name) for name in preloaded}
        # Connections of stubs by the pid of the rank, and those without an order.
        self._ranks: dict[int, socket.socket] = {}
        self._without_order: dict[int, tuple[socket.socket, float]] = {}
        # When to forget ranks that have ended, by pid: until then the head reads in /proc how they ended.
        self._forget_at: dict[int, float] = {}
        # Handlers of signals that modules have installed at their import.
        self._handlers: dict[int, Any] = {}
        self._until = time.monotonic() + _FIRST_STUB_TIMEOUT
        # SIGCHLD writes to this pipe.
        self._ends, self._wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    @classmethod
    def of(cls, listener: socket.socket, modules: str, *, lasting: bool = False) -> Template:
        """Import modules, as for `load`, and return the template."""
        append_directory()
        before = dict(os.environb)
        refusal = load(modules)
        after = dict(os.environb)
        imported = {name: (before.get(name), after.get(name)) for name, _ in before.items() ^ after.items()}
        preloaded = filter(None, modules.split(","))
        return cls(listener, refusal=refusal, preloaded=preloaded, imported=imported, lasting=lasting)

    def serve(self) -> None:
        """Fork ranks for stubs, and report to each stub how its rank ends."""
        debug_log.set_up()
        debug_log.started(os.getpid(), "the template of this node")
        for number in _IGNORED:
            self._handlers[number] = signal.signal(number, signal.SIG_IGN)
        self._handlers[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakes, warn_on_full_buffer=False)
        # The template has one connection per rank. The rank gets the limits of its stub.
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        gc.collect()
        gc.freeze()
        waiting = select.poll()
        waiting.register(self._listener, select.POLLIN)
        waiting.register(self._ends, select.POLLIN)
        while not self._done():
            has_deadline = self._without_order or self._forget_at or not (self._lasting or self._ranks)
            ready = dict(waiting.poll(1000 if has_deadline else None))
            if self._ends in ready:
                os.read(self._ends, 4096)
            self._reap()
            for file in [file for file in ready if file in self._without_order]:
                waiting.unregister(file)
                connection, _ = self._without_order.pop(file)
                with _printed_errors(connection.close):
                    self._handle(connection)
            for file in [file for file, (_, until) in self._without_order.items() if time.monotonic() > until]:
                waiting.unregister(file)
                self._without_order.pop(file)[0].close()
            if self._listener.fileno() in ready:
                with _printed_errors():
                    self._accept(waiting)
        for pid in self._forget_at:
            os.waitpid(pid, 0)
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
        self._without_order[connection.fileno()] = connection, time.monotonic() + _ORDER_TIMEOUT
        waiting.register(connection, select.POLLIN)

    def _handle(self, connection: socket.socket) -> None:
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
            connection.sendall(stub.REFUSED + reason[:_MAX_REASON].encode() + b"\0")
            connection.close()

    def _fork(self, order: dict[str, Any], files: list[int], connection: socket.socket) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        if pid := os.fork():
            self._ranks[pid] = connection
            debug_log.started(pid, "a rank")
            return
        try:
            # The rank keeps no file of the template.
            signal.set_wakeup_fd(-1)
            for number in (self._listener.fileno(), self._ends, self._wakes):
                os.close(number)
            for other in (*self._ranks.values(), *(pending for pending, _ in self._without_order.values())):
                other.close()
            become(order, files, connection, self._handlers, self._imported)
        except BaseException:  # noqa: BLE001  (after any error, this process must not continue as a second template)
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)

    @staticmethod
    def _several_threads() -> str:
        return f"the template has {threads()} threads" if threads() > 1 else ""

    def _changed(self) -> str:
        changed = [name for name, mtime in self._mtimes.items() if _mtime(name) != mtime]
        return f"{changed[0]} has changed since the template imported it" if changed else ""

    def _reap(self) -> None:
        now = time.monotonic()
        for pid in [pid for pid, until in self._forget_at.items() if now > until]:
            del self._forget_at[pid]
            os.waitpid(pid, 0)
        for pid in list(self._ranks):
            end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if end is None:
                continue
            self._forget_at[pid] = now + _REMEMBER
            status = end.si_status << 8 if end.si_code == os.CLD_EXITED else end.si_status
            code = os.waitstatus_to_exitcode(status)
            debug_log.ended(pid, code, "a rank")
            if code < 0:  # the launcher may not report it, if the other ranks continue
                print(f"workbench: a rank, process {pid}, ended with {exit_description(code)}", file=sys.stderr)  # noqa: T201
            connection = self._ranks.pop(pid)
            with contextlib.suppress(OSError):  # the stub was killed, and its rank with it
                connection.sendall(stub.ENDED + status.to_bytes(4, sys.byteorder))
            connection.close()

    def _done(self) -> bool:
        """Return whether the template is not needed any more; if so, its socket is removed."""
        if self._lasting or self._ranks or self._without_order or time.monotonic() < self._until:
            return False
        path = Path(self._listener.getsockname())
        try:
            # Stubs connect while they hold the lock.
            with open(path.with_name(stub.LOCK), "rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if select.select([self._listener], [], [], 0)[0]:
                    return False  # a stub has connected
                path.unlink()
        except BlockingIOError:
            return False
        except FileNotFoundError:
            pass  # the folder has been removed
        return True


@contextlib.contextmanager
def _printed_errors(on_error: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Print the error of one stub and continue, because the other stubs still need the template."""
    try:
        yield
    except Exception:  # noqa: BLE001  (a stub may send anything)
        traceback.print_exc()
        on_error()


def _mtime(name: str) -> int:
    """Return when the file of a module was last written, in nanoseconds; 0 if the module has no file."""
    try:
        return os.stat(sys.modules[name].__file__ or "").st_mtime_ns  # noqa: PTH116  (called for each rank)
    except (AttributeError, KeyError, OSError):
        return 0


def _receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Return the order and the files of a stub; raise EOFError if the stub has ended."""
    connection.settimeout(_ORDER_TIMEOUT)
    header, files, _, _ = socket.recv_fds(connection, 8, _MAX_FILES)
    try:
        order = _read(connection, int.from_bytes(header, "big"))
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
    order: dict[str, Any] = marshal.loads(text)  # noqa: S302  (sent by a process of this user)
    return order
