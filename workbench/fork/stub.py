"""Stand in for one rank: ``mpiexec`` starts this small program, and the template of its node forks the rank.

``python -I -S stub.py ID LOG MODULES PROGRAM WORD ...`` does what ``python -m PROGRAM WORD ...`` would do. The stub
hands over what its launcher gave it (environment, open files, limits, working directory), passes signals on, and ends
as the rank ends. If the stub is killed, the kernel kills the rank. Where the rank cannot be forked, the stub becomes
the rank.

Hundreds of stubs may start at once from one file system, so the program is one file, and loads nothing but modules of
the interpreter. ``socket`` and ``signal`` take longer to load than everything else together: their C halves are enough.
"""

from __future__ import annotations

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

SOCKET, LOCK = "template.sock", "template.lock"
"""Where the template of a node listens, in the cluster's folder for sockets; and what is locked to connect to it."""
ONE_THREAD = dict.fromkeys(
    (
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
        "BLIS_NUM_THREADS",
        "NUMEXPR_NUM_THREADS",
        "VECLIB_MAXIMUM_THREADS",
    ),
    "1",
)
"""Variables with which libraries start no threads of their own: a process that has threads cannot be forked."""

FORKED, REFUSED, ENDED = b"F", b"R", b"E"
"""First byte of what a template sends to a stub: the pid of the rank follows, the reason and a zero, or how the rank
has ended."""

# Seconds until the template has answered, which may have to import everything first, from a busy file system: half of
# the time that the rank has for its start, and as many where the rank is given no time.
_ANSWER = 60.0
# Seconds to wait for another stub that is starting the template.
_TURN = 10.0
# Characters of a folder in which there is one for sockets: the path of a socket may have 107, and
# `/workbench-0123456789abcdef-01234567/panel-4194304-99999.sock` has the rest.
_LONGEST = 46
# Milliseconds between two looks at the parent, where the kernel does not report its end.
_LOOK = 1000
_PASSED_ON = (
    signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM,
    signal.SIGCONT, signal.SIGTSTP, signal.SIGWINCH,
)  # fmt: skip
# Variables that a process reads when it starts, and never again.
_READ_AT_START = (b"PYTHON", b"LD_", b"LC_", b"LANG", b"MALLOC_", b"GLIBC_", b"TZ", b"DASK_", b"MPI4PY_")
_LIBRARIES = b"LD_LIBRARY_PATH"
_CAPABILITIES = ("CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:", "NoNewPrivs:", "Seccomp:")
# The variable of a guarded process (workbench/processes/guard.py), and what the guard makes of its privileges.
_GUARD, _GUARDED = "WORKBENCH_GUARD", {"NoNewPrivs": "1", "Seccomp": "2"}


class Refused(Exception):
    """The rank cannot be forked; the message is the reason."""


def main() -> NoReturn:
    """Have the rank forked and stand in for it, or become it."""
    began = time.time()
    identity, log, modules, *words = sys.argv[1:]
    parent = os.getppid()
    given = _given_files()
    order = {"words": words, "began": began, "daemon": parent, "files": given}
    try:
        connection, life, rank = _hand_over(order, identity, log, modules)
    except (OSError, ValueError, Refused) as reason:
        if os.getppid() != parent:
            os._exit(1)  # nobody waits for this rank any more
        try:
            os.write(2, f"workbench: a rank starts without the template of its node: {reason}\n".encode())
        except OSError:
            pass
        os.execv(sys.executable, [sys.executable, "-m", *words])  # noqa: S606  (no shell is the point)
    _close(given)
    # What waits for the end of the rank's output must not wait for the stub.
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    _end(_stand_in(connection, life, rank, parent))


def _given_files() -> list[int]:
    """Return the numbers of the files that this process was given."""
    for number in (0, 1, 2):
        if not _is_open(number):
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    return sorted(number for number in map(int, os.listdir("/proc/self/fd")) if _is_open(number))


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False  # for instance the listing itself
    return True


def _close(given: list[int]) -> None:
    for number in given[3:]:
        os.close(number)


def surroundings() -> dict[str, Any]:
    """Return what a process cannot be given after its start, by the words for it.

    A rank can be forked only where these are the same for the stub and the template.
    """
    status = dict(
        line.split(":\t") for line in _read("/proc/self/status").splitlines() if line.startswith(_CAPABILITIES)
    )
    guard = os.environ.get(_GUARD)
    if guard and _GUARDED.items() <= status.items():
        # What the guard has changed is no difference: a rank needs no guard.
        status |= zip(_GUARDED, guard.split(":"), strict=True)
    spaces = {kind: _link(f"/proc/self/ns/{kind}") for kind in sorted(os.listdir("/proc/self/ns"))}
    policy = _read("/proc/self/numa_maps").split(None, 2)[1:2]
    return {
        "interpreter": sys.executable,
        "control group": _read("/proc/self/cgroup"),
        "namespaces": spaces,
        "root folder": _link("/proc/self/root"),
        "user": (os.getresuid(), os.getresgid(), sorted(os.getgroups())),
        "privileges": status,
        "security label": _read("/proc/self/attr/current"),
        "memory policy": policy,
        "scheduling policy": os.sched_getscheduler(0),
        "OOM score": _read("/proc/self/oom_score_adj"),
        "variables that are read at the start": {
            name: value for name, value in os.environb.items() if name.startswith(_READ_AT_START) and name != _LIBRARIES
        },
        # Launchers put those of their own libraries in front.
        "folders of libraries": sorted(set(os.environb.get(_LIBRARIES, b"").split(b":"))),
    }


def difference(stub: dict[str, Any], template: dict[str, Any]) -> str:
    """Return what keeps a rank from being forked, by the `surroundings` of two processes; empty if nothing does."""
    other = [what for what, value in template.items() if what != "folders of libraries" and stub.get(what) != value]
    if not set(template["folders of libraries"]) <= set(stub["folders of libraries"]) | {b""}:
        other.append("folders of libraries")
    return f"the template has another {', another '.join(other)}" if other else ""


def limits() -> dict[int, tuple[int, int]]:
    """Return the limits of this process, by the number of the resource."""
    return {
        number: resource.getrlimit(number)
        for number in {value for name, value in vars(resource).items() if name.startswith("RLIMIT_")}
    }


def node() -> str:
    """Return what names of folders have for the name of this node."""
    return f"{binascii.crc32(os.uname().nodename.encode()):08x}"


def sockets_folder(identity: str, on: str) -> str:
    """Return the path of the folder for a cluster's Unix sockets.

    Parameters
    ----------
    identity
        Id of the cluster.
    on
        As of `node`; ``*`` for a pattern of all nodes.
    """
    name = f"{folder_name(identity)}-{on}"
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.access(runtime, os.W_OK) and len(runtime) <= _LONGEST:
        return f"{runtime}/{name}"
    return f"/tmp/{name}"  # noqa: S108  (made 0700 and checked)


def folder_name(identity: str) -> str:
    """Return the name of a cluster's folders where others can make folders, too.

    Notes
    -----
    Nobody can take it beforehand: it is random, and the digits are those that schedulers do not show (`identity` of
    `workbench.deploy.job_spec`).
    """
    return f"workbench-{identity[-16:]}"


def make_private(folder: str) -> None:
    """Make a folder, or check that it is the user's alone.

    Raises
    ------
    PermissionError
        If it is somebody else's, or open to others: ``/tmp`` is everybody's.
    """
    os.makedirs(os.path.dirname(folder), 0o700, exist_ok=True)
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass
    status = os.lstat(folder)
    if status.st_mode & 0o170077 != 0o040000 or status.st_uid != os.geteuid():
        raise PermissionError(f"{folder} must be your folder with mode 700, but it is not")


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""  # this kernel has no such thing


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _hand_over(
    order: dict[str, Any], identity: str, log: str, modules: str
) -> tuple[socket.socket, socket.socket, int]:
    """Have the template fork the rank; return the connection to the template, that to the rank, and the rank's pid.

    Raises
    ------
    Refused, OSError
        If the rank cannot be forked.
    """
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
    life, its_life = socket.socketpair()
    patience = _patience(order["words"])
    connection = _connect(identity, log, modules, order, time.monotonic() + patience)
    connection.settimeout(patience)
    text = marshal.dumps(order)
    files = b"".join(number.to_bytes(4, sys.byteorder) for number in (folder, its_life.fileno(), *order["files"]))
    head = len(text).to_bytes(8, "big")
    try:
        connection.sendmsg([head], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
        connection.sendall(text)
        its_life.close()
        os.close(folder)
        answer = connection.recv(1)
        if answer == REFUSED:
            raise Refused(connection.recv(8192).partition(b"\0")[0].decode(errors="replace"))
    except TimeoutError:
        raise Refused(f"the template has not answered for {patience:.0f} s") from None
    except (ConnectionResetError, BrokenPipeError):
        answer = b""
    if answer != FORKED:
        raise Refused(f"the template, or the rank that was forked, ended before it answered; {log} may say why")
    rank = int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "big")
    connection.settimeout(None)
    return connection, life, rank


def _patience(words: list[str]) -> float:
    """Return the seconds for an answer, after which there is time for a start without the template."""
    return float(words[words.index("--timeout") + 1]) / 2 if "--timeout" in words else _ANSWER


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _connect(identity: str, log: str, modules: str, order: dict[str, Any], until: float) -> socket.socket:
    """Return a connection to the template of this node, which is started if there is none."""
    folder = sockets_folder(identity, node())
    make_private(folder)
    while True:
        try:
            return _connect_once(folder, log, modules, order)
        except BlockingIOError:
            # As many stubs as the kernel lets wait do so while the template imports.
            if time.monotonic() > until:
                raise Refused(f"too many ranks wait for {folder}/{SOCKET}") from None
            time.sleep(0.02)


def _connect_once(folder: str, log: str, modules: str, order: dict[str, Any]) -> socket.socket:
    lock = os.open(f"{folder}/{LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + _TURN
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise Refused(f"{folder}/{LOCK} is locked for more than {_TURN:.0f} s") from None
            time.sleep(0.005)
    try:
        return _try_to_connect(folder)
    except (FileNotFoundError, ConnectionRefusedError):
        _start_template(folder, log, [*order["words"][1:3], modules], order["files"])
        return _try_to_connect(folder)
    finally:
        os.close(lock)


def _try_to_connect(folder: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(_TURN)
    connection.connect(f"{folder}/{SOCKET}")
    if peer_user(connection) != os.geteuid():
        raise Refused(f"{folder}/{SOCKET} is another user's")
    return connection


def peer_user(connection: Any) -> int:
    """Return the number of the user at the other end of a Unix socket."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    user: int = int.from_bytes(credentials[4:8], sys.byteorder)
    return user


def listen(folder: str) -> Any:
    """Return the socket on which the template of this node listens, in the cluster's folder for sockets."""
    path = f"{folder}/{SOCKET}"
    try:
        os.unlink(path)  # of a template that has ended
    except FileNotFoundError:
        pass
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    os.chmod(path, 0o600)
    listener.listen(4096)
    return listener


def _start_template(folder: str, log: str, words: list[str], given: list[int]) -> None:
    """Start the template of this node, which connections wait for from now on."""
    listener = listen(folder)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    if not os.fork():
        try:
            # Who ends this stub with its process group must leave the template to the other ranks.
            os.setpgid(0, 0)
            _close(given)
            null = os.open(os.devnull, os.O_RDONLY)
            for number, source in ((0, null), (1, output), (2, output)):
                os.dup2(source, number)
            os.set_inheritable(listener.fileno(), True)
            command = [sys.executable, "-m", "workbench.fork", *words, str(listener.fileno())]
            os.execve(sys.executable, command, {**os.environ, **ONE_THREAD})  # noqa: S606  (no shell is the point)
        except BaseException as error:  # noqa: BLE001  (this process must not go on as another stub)
            os.write(2, f"workbench: the template of this node did not start: {error!r}\n".encode())
        os._exit(127)
    listener.close()
    os.close(output)


def _stand_in(connection: socket.socket, life: socket.socket, rank: int, parent: int) -> int:
    """Pass signals on to the rank and return the status with which it has ended."""
    _pass_signals_on(rank)
    try:
        connection.sendall(FORKED)  # the rank waits for this
    except OSError:
        pass  # it has been killed
    waiting = select.poll()
    waiting.register(connection, select.POLLIN)
    pause, end = None, life.fileno()
    try:
        waiting.register(os.pidfd_open(parent), select.POLLIN)
    except (AttributeError, OSError):
        pause = _LOOK  # an old kernel, or the parent has ended
    try:
        # Processes that the rank has forked keep the other end of its life.
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
            # The template was killed. The rank goes on, and nobody can report how it ends.
            waiting.unregister(connection)
            waiting.register(end, select.POLLIN)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)


def _pass_signals_on(rank: int) -> None:
    def pass_on(number: int, _: object) -> None:
        try:
            os.killpg(rank, number)
        except ProcessLookupError:
            pass

    for number in _PASSED_ON:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, pass_on)


def _end(status: int) -> NoReturn:
    """End as the rank has ended."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        # The rank has left its memory on disk if that is wanted.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (number,))
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
