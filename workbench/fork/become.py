"""Makes a process that was forked from the template the rank of a stub."""

from __future__ import annotations

import ctypes
import fcntl
import gc
import importlib
import importlib.util
import os
import resource
import select
import signal
import socket
import sys
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench.host import stub

# The constant of <asm-generic/fcntl.h> that sets the signal for events of a file.
_F_SETSIG = 10
HEAD, TEMPLATE, RANK = b"workbench.head", b"workbench.fork", b"workbench.rank"
"""Programs in the command lines of processes. All have the same length."""
Variables = Mapping[bytes, tuple[bytes | None, bytes | None]]
"""Changed variables of the environment: the values before and after the change, None without the variable."""


class BecomeRefused(Exception):
    """A process cannot be made equal to its stub; the message is the reason."""


def become(
    order: dict[str, Any],
    files: list[int],
    connection: socket.socket,
    handlers: Mapping[int, Any],
    imported: Variables,
) -> None:
    """Become the rank of a stub and run its program until this process ends; returns if the rank cannot be forked.

    Parameters
    ----------
    order
        The state of the stub, from `workbench.host.stub`.
    files
        The working directory, the connection that closes when the stub ends, then the inherited files of the stub.
    connection
        Connection to the stub, for the answer.
    handlers
        Handlers that modules have installed for the signals that the template handles, by number.
    imported
        Variables that modules have changed at their import.
    """
    # The new numbers are above all numbers of the stub's files.
    first = max(order["files"]) + 1
    received = (connection.detach(), *files)
    moved = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, first) for number in received]
    for number in received:
        os.close(number)
    answer = socket.socket(fileno=moved[0])
    try:
        directory, life, *inherited = moved[1:]
        _take_files(order["files"], inherited)
        _take_limits(order)
        _take_directory(directory)
        os.umask(order["umask"])
        _take_variables(order["environment"], imported)
        _take_signals(order, handlers)
        _die_with_stub(life)
        _renew(order)
    except Exception as reason:  # noqa: BLE001  (after any error the stub can become the rank itself)
        answer.sendall(stub.REFUSED + f"{str(reason) or repr(reason)}\0".encode())
        return
    rename(RANK)
    answer.sendall(stub.FORKED + os.getpid().to_bytes(4, "big"))
    answer.recv(1)  # after this byte the stub forwards signals
    answer.close()
    _run(order["arguments"], daemon=order["daemon"], began=order["began"])
    _exit(0)


def _exit(status: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    # Not os._exit, because MPICH disconnects from its launcher in an exit handler of C.
    ctypes.CDLL(None).exit(status)


def _take_files(numbers: Sequence[int], files: Sequence[int]) -> None:
    for number, file in zip(numbers, files, strict=True):
        if number > 2 and Path(f"/proc/self/fd/{number}").is_symlink():
            raise BecomeRefused(f"file {number} is open in the template")
        os.dup2(file, number)
        os.close(file)


def _take_limits(order: dict[str, Any]) -> None:
    for number, limits in order["limits"].items():
        if resource.getrlimit(number) != limits:
            resource.setrlimit(number, limits)
    if os.getpriority(os.PRIO_PROCESS, 0) != order["nice"]:
        os.setpriority(os.PRIO_PROCESS, 0, order["nice"])
    os.sched_setaffinity(0, order["cpus"])


def append_directory() -> None:
    """Let this process import modules of the working directory, the user's, unless a library has one of that name.

    ``python -P`` leaves this folder out of the path, and ``python -m`` would search it first.
    """
    sys.path.append(os.getcwd())  # noqa: PTH109  (as the interpreter writes it)


def _take_directory(directory: int) -> None:
    # The template has appended its folder for its own imports, and the rank appends its folder.
    if sys.path[-1:] == [os.getcwd()]:  # noqa: PTH109
        sys.path.pop()
    os.fchdir(directory)
    os.close(directory)


def _take_variables(variables: dict[bytes, bytes], imported: Variables) -> None:
    # The import in the rank would have made the same change; for example mpi4py sets FI_PROVIDER_PATH for Intel MPI.
    for name, (before, after) in imported.items():
        if variables.get(name) == before:
            variables.pop(name, None)
            variables |= {} if after is None else {name: after}
    # Each variable is changed with os.environb, because C libraries read the variables of the process.
    for name in set(os.environb) - set(variables):
        del os.environb[name]
    os.environb.update(variables)


def _take_signals(order: dict[str, Any], handlers: Mapping[int, Any]) -> None:
    # Handlers that other modules have installed at their import stay, for example those of faulthandler.
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        handler = handlers.get(number, signal.getsignal(number))
        if number in order["ignored"]:
            signal.signal(number, signal.SIG_IGN)
        elif number in handlers or handler == signal.SIG_IGN:
            default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, default if handler in {None, signal.SIG_IGN} else handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, order["blocked"])


def _die_with_stub(life: int) -> None:
    """Make the kernel kill this process and its children when the stub ends.

    The end of the stub closes the other end of `life`. The kernel then sends the signal of ``F_SETSIG`` to the
    process group, also if the rank is blocked in C code or the template is dead.
    """
    os.setpgid(0, 0)
    fcntl.fcntl(life, fcntl.F_SETOWN, -os.getpid())
    fcntl.fcntl(life, _F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([life], [], [], 0)[0]:
        raise BecomeRefused("the stub has ended")


def _renew(order: dict[str, Any]) -> None:
    """Renew the state of modules that must differ between processes, and that the template made at their import."""
    loaded = sys.modules
    gc.enable()  # the template has disabled it
    if "numpy.random" in loaded:
        # Otherwise each rank would draw the same numbers. Python's own generator is reseeded at a fork.
        loaded["numpy.random"].seed()
    if "multiprocessing.process" in loaded:
        process = loaded["multiprocessing.process"].current_process()
        process.authkey = os.urandom(32)
    if "dask.system" in loaded:
        cores = loaded["dask.system"].cpu_count()
        for name, module in list(loaded.items()):
            if name.startswith(("dask.", "distributed.")) and hasattr(module, "CPU_COUNT"):
                vars(module)["CPU_COUNT"] = cores
    if "distributed.system" in loaded:
        system = loaded["distributed.system"]
        vars(system)["MEMORY_LIMIT"] = system.memory_limit()
    # The template limits linear algebra libraries to one thread, because a process with threads cannot be forked.
    setting = order["environment"].get(b"OPENBLAS_NUM_THREADS", b"")
    threads = int(setting) if setting.isdigit() else len(order["cpus"])
    if threads > 1:
        from threadpoolctl import threadpool_limits

        threadpool_limits(threads)


def rename(program: bytes) -> None:
    """Write `program` into the command line of this process, which the kernel shows in ``/proc/PID/cmdline``."""
    command_line = Path("/proc/self/cmdline").read_bytes()
    begin = int(Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[45])
    for name in (HEAD, TEMPLATE):
        if begin and (at := command_line.find(b"\0" + name + b"\0")) >= 0:
            ctypes.memmove(begin + at + 1, program, len(program))


def _run(arguments: Sequence[str], **of_stub: Any) -> None:
    """Run a program as ``python -P -m`` does, and pass facts about the stub to its function ``main``."""
    name = arguments[0]
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        name = f"{name}.__main__"
    program = importlib.import_module(name)
    sys.argv = [str(program.__file__), *arguments[1:]]
    # pickle searches the names of __main__ here.
    main = types.ModuleType("__main__")
    main.__dict__.update(program.__dict__ | {"__name__": "__main__"})
    sys.modules["__main__"] = main
    try:
        program.main(**of_stub)
    except SystemExit as end:
        # The interpreter does the same: a number is the status, another value is a message.
        status = 0 if end.code is None else end.code
        if not isinstance(status, int):
            print(status, file=sys.stderr)  # noqa: T201
            status = 1
        _exit(status)
