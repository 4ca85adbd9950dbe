"""The stub of one rank: ``mpiexec`` starts this small program, and the template of its node forks the rank.

``python -I -S stub.py LOG MODULES PROGRAM ARGUMENT ...`` has the effect of ``python -P -m PROGRAM ARGUMENT ...``.
The stub passes its environment, open files, limits and working directory to the template, forwards signals to the
rank, and ends with the status of the rank. If the stub is killed, the kernel kills the rank. If the rank cannot be
forked, the stub becomes the rank.

Hundreds of stubs may start simultaneously from one file system, so the program is one file, and loads only modules of
the interpreter. It uses the C halves of ``socket`` and ``signal``, because the modules take longer to load than all
others together.
"""

from __future__ import annotations

import _imp
import _signal as signal
import _socket as socket
import binascii
import fcntl
import marshal
import os
import resource
import select
import sys
import time

# `typing` takes longer to load than the whole program.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

CLUSTER = "WORKBENCH_CLUSTER"
"""Variable with the id of the cluster, which other users must not see on a command line."""
SOCKET, LOCK = "template.sock", "template.lock"
"""Names of the template's socket and of the lock for connecting, in the cluster's folder for sockets."""
ONE_THREAD = {
    **dict.fromkeys(
        (
            "OMP_NUM_THREADS",
            "OPENBLAS_NUM_THREADS",
            "MKL_NUM_THREADS",
            "BLIS_NUM_THREADS",
            "NUMEXPR_NUM_THREADS",
            "VECLIB_MAXIMUM_THREADS",
        ),
        "1",
    ),
    # PyArrow, which pandas imports
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
"""Variables that keep libraries from starting threads: a process with threads cannot be forked."""

FORKED, REFUSED, ENDED = b"F", b"R", b"E"
"""First byte of a message of the template. The pid of the rank follows, the reason and a zero, or the rank's status."""

# Seconds for an answer of the template, which may first import all modules from a busy file system, if the rank has no
# timeout. Otherwise half of the timeout of the rank.
_ANSWER_TIMEOUT = 60.0
# Seconds to wait for another stub that is starting the template.
_LOCK_TIMEOUT = 10.0
# Characters of the path above a folder for sockets, at most: the path of a socket has at most 107, including
# `/workbench-0123456789abcdef-01234567/panel-4194304-99999.sock`.
_MAX_FOLDER = 46
# Milliseconds between two checks of the parent, if the kernel does not report its end.
_PARENT_INTERVAL = 1000
_FORWARDED = (
    signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM,
    signal.SIGCONT, signal.SIGTSTP, signal.SIGWINCH,
)  # fmt: skip
# Variables that a process reads only at its start.
_READ_AT_START = (b"PYTHON", b"LD_", b"LC_", b"LANG", b"MALLOC_", b"GLIBC_", b"TZ", b"DASK_", b"MPI4PY_")
_LIBRARIES = b"LD_LIBRARY_PATH"
_CAPABILITIES = ("CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:", "NoNewPrivs:", "Seccomp:")
# The variable of a guarded process (workbench/host/guard.py), and the privileges that the guard sets.
_GUARD, _GUARDED = "WORKBENCH_GUARD", {"NoNewPrivs": "1", "Seccomp": "2"}


class Refused(Exception):
    """The rank cannot be forked; the message is the reason."""


def main() -> NoReturn:
    """Let the template fork the rank and represent the rank, or become the rank."""
    began = time.time()
    log, modules, *arguments = sys.argv[1:]
    parent = os.getppid()
    files = _inherited_files()
    order = {"arguments": arguments, "began": began, "daemon": parent, "files": files}
    try:
        connection, life, rank = _request_fork(order, log, modules)
    except (OSError, ValueError, Refused) as reason:
        if os.getppid() != parent:
            os._exit(1)  # the launcher has ended, so this rank is not needed
        try:
            os.write(2, f"workbench: a rank starts without the template of its node: {reason}\n".encode())
        except OSError:
            pass
        os.execv(sys.executable, [sys.executable, "-P", "-m", *arguments])  # noqa: S606  (no shell on purpose)
    _close(files)
    # A reader of the rank's output must not wait for the end of the stub.
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    _end(_wait_for_rank(connection, life, rank, parent))


def _inherited_files() -> list[int]:
    """Return the numbers of the inherited files, and open the standard ones that are missing."""
    for number in (0, 1, 2):
        if not _is_open(number):
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number
    return sorted(number for number in map(int, os.listdir("/proc/self/fd")) if _is_open(number))


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False  # for example the file of the listing
    return True


def _close(files: list[int]) -> None:
    for number in files[3:]:
        os.close(number)


def surroundings() -> dict[str, Any]:
    """Return the properties that a process cannot change after its start, by their descriptions.

    A rank can be forked only if the stub and the template have the same.
    """
    status = dict(
        line.split(":\t") for line in _read("/proc/self/status").splitlines() if line.startswith(_CAPABILITIES)
    )
    guard = os.environ.get(_GUARD)
    if guard and _GUARDED.items() <= status.items():
        # The changes of the guard do not count, because a rank needs no guard.
        status |= zip(_GUARDED, guard.split(":"), strict=True)
    spaces = {kind: _link(f"/proc/self/ns/{kind}") for kind in sorted(os.listdir("/proc/self/ns"))}
    policy = _read("/proc/self/numa_maps").split(None, 2)[1:2]
    return {
        "interpreter": sys.executable,
        "control group": _read("/proc/self/cgroup"),
        "namespaces": spaces,
        "user": (os.getresuid(), os.getresgid(), sorted(os.getgroups())),
        "privileges": status,
        "security label": _read("/proc/self/attr/current"),
        "memory policy": policy,
        "scheduling policy": os.sched_getscheduler(0),
        "variables that are read at the start": {
            name: value for name, value in os.environb.items() if name.startswith(_READ_AT_START) and name != _LIBRARIES
        },
        # Launchers prepend the folders of the libraries of MPI.
        "folders of libraries": sorted(set(os.environb.get(_LIBRARIES, b"").split(b":"))),
    }


def difference(stub: dict[str, Any], template: dict[str, Any]) -> str:
    """Return why a rank cannot be forked, from the `surroundings` of both processes; empty if it can."""
    names = [name for name, value in template.items() if name != "folders of libraries" and stub.get(name) != value]
    if not set(template["folders of libraries"]) <= set(stub["folders of libraries"]) | {b""}:
        names.append("folders of libraries")
    return f"the template has another {', another '.join(names)}" if names else ""


def limits() -> dict[int, tuple[int, int]]:
    """Return the limits of this process, by the number of the resource."""
    return {
        number: resource.getrlimit(number)
        for number in {value for name, value in vars(resource).items() if name.startswith("RLIMIT_")}
    }


def node() -> str:
    """Return the identifier of this node in names of folders."""
    return f"{binascii.crc32(os.uname().nodename.encode()):08x}"


def sockets_folder(identity: str, on: str) -> str:
    """Return the path of the folder for a cluster's Unix sockets.

    Parameters
    ----------
    identity
        Id of the cluster.
    on
        A result of `node`, or ``*`` for a pattern of all nodes.
    """
    name = f"{folder_name(identity, 'sockets', on)}-{on}"
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.access(runtime, os.W_OK) and len(runtime) <= _MAX_FOLDER:
        return f"{runtime}/{name}"
    return f"/tmp/{name}"  # noqa: S108  (created with mode 0700 and checked)


def folder_name(identity: str, kind: str, on: str = "") -> str:
    """Return the name of a folder of a cluster in a place where other users can create folders too.

    Another user cannot create the folder in advance: the second half of the name cannot be computed from the digits of
    the id that others see (`public_id` of `workbench.deploy.job_spec`), nor from the names of the cluster's folders of
    other kinds or on other nodes. With ``*`` for `on`, the result is a pattern.
    """
    if on == "*":
        return f"workbench-{identity[:8]}{'?' * 8}"
    # SipHash with the id as its key. Every build of Python has it, whereas builds for FIPS lack modules of hashes.
    key = int.from_bytes(_imp.source_hash(0, identity.encode()), sys.byteorder, signed=True)
    return f"workbench-{identity[:8]}{_imp.source_hash(key, f'{kind}/{on}'.encode())[:4].hex()}"


def make_private(folder: str) -> None:
    """Create a private folder, or raise PermissionError if it exists and other users own or can open it."""
    os.makedirs(os.path.dirname(folder), 0o700, exist_ok=True)
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass
    status = os.lstat(folder)
    if status.st_mode & 0o170077 != 0o040000 or status.st_uid != os.geteuid():
        raise PermissionError(f"{folder} must be a folder that you own, with mode 700")


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""  # this kernel does not have the file


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _request_fork(order: dict[str, Any], log: str, modules: str) -> tuple[socket.socket, socket.socket, int]:
    """Return the connections to the template and to the forked rank, and its pid; raise Refused or OSError."""
    if "/task_" in _read("/proc/self/cgroup"):
        raise Refused("each rank has a separate control group here")
    order |= {
        "environment": dict(os.environb),
        "umask": _umask(),
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "cpus": sorted(os.sched_getaffinity(0)),
        "limits": limits(),
        "ignored": [number for number in signal.valid_signals() if signal.getsignal(number) == signal.SIG_IGN],
        "blocked": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())],
        "surroundings": surroundings(),
    }
    folder = os.open(".", os.O_RDONLY)
    life, life_of_rank = socket.socketpair()
    timeout = _answer_timeout(order["arguments"])
    connection = _connect(log, modules, order, time.monotonic() + timeout)
    connection.settimeout(timeout)
    text = marshal.dumps(order)
    files = b"".join(number.to_bytes(4, sys.byteorder) for number in (folder, life_of_rank.fileno(), *order["files"]))
    header = len(text).to_bytes(8, "big")
    try:
        connection.sendmsg([header], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
        connection.sendall(text)
        life_of_rank.close()
        os.close(folder)
        answer = connection.recv(1)
        if answer == REFUSED:
            raise Refused(connection.recv(8192).partition(b"\0")[0].decode(errors="replace"))
    except TimeoutError:
        raise Refused(f"the template has not answered for {timeout:.0f} s") from None
    except (ConnectionResetError, BrokenPipeError):
        answer = b""
    if answer != FORKED:
        raise Refused(f"the template or the forked rank ended before it answered; {log} may show the reason")
    rank = int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "big")
    connection.settimeout(None)
    return connection, life, rank


def _answer_timeout(arguments: list[str]) -> float:
    """Return the seconds for an answer, which leave time for a start without the template."""
    return float(arguments[arguments.index("--timeout") + 1]) / 2 if "--timeout" in arguments else _ANSWER_TIMEOUT


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _connect(log: str, modules: str, order: dict[str, Any], until: float) -> socket.socket:
    """Return a connection to the template of this node, which is started if it does not run."""
    if not (identity := os.environ.get(CLUSTER)):
        raise Refused(f"the launcher has not passed on the variable {CLUSTER}")
    folder = sockets_folder(identity, node())
    make_private(folder)
    while True:
        try:
            return _connect_once(folder, log, modules, order)
        except BlockingIOError:
            # The kernel limits the number of stubs that wait while the template imports.
            if time.monotonic() > until:
                raise Refused(f"too many ranks wait for {folder}/{SOCKET}") from None
            time.sleep(0.02)


def _connect_once(folder: str, log: str, modules: str, order: dict[str, Any]) -> socket.socket:
    lock = os.open(f"{folder}/{LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + _LOCK_TIMEOUT
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise Refused(f"{folder}/{LOCK} has been locked for more than {_LOCK_TIMEOUT:.0f} s") from None
            time.sleep(0.005)
    try:
        return _try_to_connect(folder)
    except (FileNotFoundError, ConnectionRefusedError):
        _start_template(folder, log, [*order["arguments"][1:3], modules], order["files"])
        return _try_to_connect(folder)
    finally:
        os.close(lock)


def _try_to_connect(folder: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(_LOCK_TIMEOUT)
    connection.connect(f"{folder}/{SOCKET}")
    if peer_user(connection) != os.geteuid():
        raise Refused(f"{folder}/{SOCKET} belongs to another user")
    return connection


def peer_user(connection: Any) -> int:
    """Return the user id of the process at the other end of a Unix socket."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    user: int = int.from_bytes(credentials[4:8], sys.byteorder)
    return user


def listen(folder: str) -> Any:
    """Return a new listening socket for the template of this node, in the cluster's folder for sockets."""
    path = f"{folder}/{SOCKET}"
    try:
        os.unlink(path)  # a template that has ended may have left it
    except FileNotFoundError:
        pass
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    os.chmod(path, 0o600)
    listener.listen(4096)
    return listener


def _start_template(folder: str, log: str, arguments: list[str], files: list[int]) -> None:
    """Start the template of this node. From now on connections wait for the template."""
    listener = listen(folder)
    try:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError:  # most likely the disk is full
        output = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    if not os.fork():
        try:
            # A signal to the process group of this stub must not end the template, which other ranks need.
            os.setpgid(0, 0)
            _close(files)
            null = os.open(os.devnull, os.O_RDONLY)
            for number, source in ((0, null), (1, output), (2, output)):
                os.dup2(source, number)
            os.set_inheritable(listener.fileno(), True)
            command = [sys.executable, "-P", "-m", "workbench.fork", *arguments, str(listener.fileno())]
            os.execve(sys.executable, command, {**os.environ, **ONE_THREAD})  # noqa: S606  (no shell on purpose)
        except BaseException as error:  # noqa: BLE001  (this process must not continue as a second stub)
            os.write(2, f"workbench: the template of this node did not start: {error!r}\n".encode())
        os._exit(127)
    listener.close()
    os.close(output)


def _wait_for_rank(connection: socket.socket, life: socket.socket, rank: int, parent: int) -> int:
    """Forward signals to the rank and return the status with which it has ended."""
    _forward_signals(rank)
    try:
        connection.sendall(FORKED)  # the rank waits for this
    except OSError:
        pass  # the rank was killed
    waiting = select.poll()
    waiting.register(connection, select.POLLIN)
    pause, end = None, life.fileno()
    try:
        waiting.register(os.pidfd_open(parent), select.POLLIN)
    except (AttributeError, OSError):
        pause = _PARENT_INTERVAL  # an old kernel, or the parent has ended
    try:
        # Children of the rank keep the other end of `life` open.
        end = os.pidfd_open(rank)
    except (AttributeError, OSError):
        pass  # an old kernel, or the rank has ended, and the template reports how
    while True:
        ready = dict(waiting.poll(pause))
        if end in ready:
            return int(signal.SIGKILL)
        if connection.fileno() in ready:
            if status := connection.recv(5):
                return int.from_bytes(status[1:], sys.byteorder)
            # The template was killed. The rank continues, and no process can report its status.
            waiting.unregister(connection)
            waiting.register(end, select.POLLIN)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)


def _forward_signals(rank: int) -> None:
    def forward(number: int, _: object) -> None:
        try:
            os.killpg(rank, number)
        except ProcessLookupError:
            pass

    for number in _FORWARDED:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, forward)


def _end(status: int) -> NoReturn:
    """End with the status or the signal of the rank."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        # The rank has written a core file, if the limits allow one.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (number,))
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
