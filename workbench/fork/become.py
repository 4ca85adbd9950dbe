"""What a process that was forked does to be the rank of its stub."""

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

from workbench.fork import stub

# Of <asm-generic/fcntl.h>: which signal is sent when something happens to a file.
_F_SETSIG = 10
HEAD, TEMPLATE, RANK = b"workbench.head", b"workbench.fork", b"workbench.rank"
"""Programs in the words of processes; all have one length."""


class BecomeRefused(Exception):
    """A process cannot be what its stub is; the message is the reason."""


def become(order: dict[str, Any], files: list[int], connection: socket.socket, handlers: Mapping[int, Any]) -> None:
    """Be the rank of a stub and run its program to the end of this process; returns if the rank cannot be forked.

    Parameters
    ----------
    order
        What the stub is: see `workbench.fork.stub`.
    files
        Its working directory, the connection that lives as long as the stub, then the files that it was given.
    connection
        To the stub, which gets the answer.
    handlers
        What handled those signals that the template handles itself, by their numbers.
    """
    # Above all numbers of the stub's files.
    first = max(order["files"]) + 1
    moved = (connection.detach(), *files)
    kept = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, first) for number in moved]
    for number in moved:
        os.close(number)
    answer = socket.socket(fileno=kept[0])
    try:
        directory, life, *given = kept[1:]
        _take_files(order["files"], given)
        _take_limits(order)
        _take_directory(directory)
        os.umask(order["umask"])
        _take_variables(order["environment"])
        _take_signals(order, handlers)
        _tie(life)
        _renew(order)
    except Exception as reason:  # noqa: BLE001  (the stub can be the rank itself, whatever it is)
        answer.sendall(stub.REFUSED + f"{str(reason) or repr(reason)}\0".encode())
        return
    rename(RANK)
    answer.sendall(stub.FORKED + os.getpid().to_bytes(4, "big"))
    answer.recv(1)  # from now on the stub passes signals on
    answer.close()
    _run(order["words"], daemon=order["daemon"], began=order["began"])
    _leave(0)


def _leave(status: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    # Not os._exit: what C libraries do at the end of a process is, for MPICH, to take leave of its launcher.
    ctypes.CDLL(None).exit(status)


def _take_files(numbers: Sequence[int], given: Sequence[int]) -> None:
    for number, file in zip(numbers, given, strict=True):
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


def _take_directory(directory: int) -> None:
    before = os.getcwd()  # noqa: PTH109  (as `python -m` writes it on the path)
    os.fchdir(directory)
    os.close(directory)
    if sys.path and sys.path[0] == before:
        sys.path[0] = os.getcwd()  # noqa: PTH109


def _take_variables(variables: Mapping[bytes, bytes]) -> None:
    # One by one, since C libraries read those of the process.
    for name in set(os.environb) - set(variables):
        del os.environb[name]
    os.environb.update(variables)


def _take_signals(order: dict[str, Any], handlers: Mapping[int, Any]) -> None:
    # Others that modules have installed when they were imported stay: faulthandler's are among them.
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        handler = handlers.get(number, signal.getsignal(number))
        if number in order["ignored"]:
            signal.signal(number, signal.SIG_IGN)
        elif number in handlers or handler == signal.SIG_IGN:
            usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, usual if handler in {None, signal.SIG_IGN} else handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, order["blocked"])


def _tie(life: int) -> None:
    """Have the kernel kill this process and those that it starts when the stub has ended.

    Notes
    -----
    The end of the stub closes the other end of `life`, for which the kernel sends the signal of ``F_SETSIG`` to the
    process group. So it works while the rank is stuck in C code, and whether the template lives or not.
    """
    os.setpgid(0, 0)
    fcntl.fcntl(life, fcntl.F_SETOWN, -os.getpid())
    fcntl.fcntl(life, _F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([life], [], [], 0)[0]:
        raise BecomeRefused("the stub has ended")


def _renew(order: dict[str, Any]) -> None:
    """Make what a process has of its own, and was made when modules were imported."""
    loaded = sys.modules
    gc.enable()  # the template has none
    if "numpy.random" in loaded:
        # Each rank would draw the same numbers. Python's own generator sees to that by itself.
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
    # The template lets libraries of linear algebra have one thread, since it must have no more itself.
    wanted = order["environment"].get(b"OPENBLAS_NUM_THREADS", b"")
    threads = int(wanted) if wanted.isdigit() else len(order["cpus"])
    if threads > 1:
        from threadpoolctl import threadpool_limits

        threadpool_limits(threads)


def rename(program: bytes) -> None:
    """Have lists of processes show that this process runs `program`, and not what it was forked from.

    Notes
    -----
    The words of a process are memory of the process, which the kernel shows in ``/proc/PID/cmdline``.
    """
    words = Path("/proc/self/cmdline").read_bytes()
    begin = int(Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[45])
    for name in (HEAD, TEMPLATE):
        if begin and (at := words.find(b"\0" + name + b"\0")) >= 0:
            ctypes.memmove(begin + at + 1, program, len(program))


def _run(words: Sequence[str], **of_stub: Any) -> None:
    """Run a program as ``python -m`` does; its function ``main`` is given what only the stub knows."""
    name = words[0]
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        name = f"{name}.__main__"
    program = importlib.import_module(name)
    sys.argv = [str(program.__file__), *words[1:]]
    # What is pickled by its name in __main__ is looked for here.
    main = types.ModuleType("__main__")
    main.__dict__.update(program.__dict__ | {"__name__": "__main__"})
    sys.modules["__main__"] = main
    try:
        program.main(**of_stub)
    except SystemExit as end:
        # As the interpreter does: a number is the status, anything else is a reason.
        status = 0 if end.code is None else end.code
        if not isinstance(status, int):
            print(status, file=sys.stderr)  # noqa: T201
            status = 1
        _leave(status)
