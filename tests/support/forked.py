"""``python -m support.forked NAME ID DEED ...``: a program that does what a test wants, forked or not."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import random
import resource
import signal
import subprocess
import sys
from pathlib import Path


def main(daemon=None, began=None):
    deed, *words = sys.argv[3:]
    DEEDS[deed](*words, forked=daemon is not None)


def _tell(*words, forked):
    """Print what a process is."""
    facts = {
        "words": [*sys.argv[1:]],
        "program": Path(sys.argv[0]).name,
        "main": sys.modules["__main__"].__dict__["_tell"].__name__,
        "variable": os.environ.get("VARIABLE"),
        "for C": ctypes.CDLL(None).getenv(b"VARIABLE") != 0,
        "directory": str(Path.cwd()),
        "path": sys.path,
        "umask": os.umask(0),
        "collects garbage": gc.isenabled(),
        "nice": os.nice(0),
        "cpus": sorted(os.sched_getaffinity(0)),
        "files": resource.getrlimit(resource.RLIMIT_NOFILE),
        "ignored": [n for n in signal.valid_signals() if signal.getsignal(n) == signal.SIG_IGN],
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "interrupts": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
        "given": [number for number in range(3, 1000) if _is_given(number)],
    }
    print(json.dumps({"forked": forked, "pid": os.getpid(), "parent": os.getppid(), "facts": facts}), flush=True)


def _is_given(number):
    try:
        return os.get_inheritable(number)
    except OSError:
        return False


def _draw(*_, forked):
    """Print what must be each process's own."""
    import multiprocessing

    import numpy as np

    # ruff: noqa: NPY002  (these are the generators that a fork would share)
    drawn = [random.random(), np.random.random(), multiprocessing.current_process().authkey.hex()]
    print(json.dumps({"forked": forked, "parent": os.getppid(), "drawn": drawn}), flush=True)
    sys.stdin.read()


def _count_threads(*_, forked):
    import numpy as np
    from threadpoolctl import threadpool_info

    np.ones((2, 2)) @ np.ones((2, 2))
    print(json.dumps({"forked": forked, "threads": [its["num_threads"] for its in threadpool_info()]}), flush=True)


def _end(how, number, *, forked):
    if how == "signal":
        os.kill(os.getpid(), int(number))
    if how == "raise":
        sys.exit(int(number))
    if how == "reason":
        sys.exit([number])  # type: ignore[arg-type]  # whatever is no number is a reason
    os._exit(int(number))


def _wait(*_, forked):
    print(json.dumps({"forked": forked, "pid": os.getpid(), "parent": os.getppid()}), flush=True)
    while True:
        signal.pause()


def _stick(*_, forked):
    """Start a process and wait in C code, in which no Python thread runs."""
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], stdout=subprocess.DEVNULL)
    print(json.dumps({"forked": forked, "pid": os.getpid(), "child": child.pid}), flush=True)
    ctypes.PyDLL(None).sleep(600)


def _leave(*_, forked):
    """Fork a process that lives on, and end when there is something to read."""
    if not (child := os.fork()):
        os.close(1)
        os.close(2)
        while True:
            signal.pause()
    print(json.dumps({"forked": forked, "pid": os.getpid(), "parent": os.getppid(), "child": child}), flush=True)
    sys.stdin.readline()
    os._exit(0)


def _catch(*names, forked):
    """Print the names of signals as they come, until all have come."""
    left = {signal.Signals[name] for name in names}
    # Blocked and waited for, none can come between two waits.
    signal.pthread_sigmask(signal.SIG_BLOCK, left)
    print(json.dumps({"forked": forked, "pid": os.getpid()}), flush=True)
    while left:
        number = signal.Signals(signal.sigwait(left))
        print(json.dumps(number.name), flush=True)
        left.discard(number)


DEEDS = {
    "tell": _tell, "draw": _draw, "count": _count_threads, "end": _end, "wait": _wait, "stick": _stick, "catch": _catch,
    "leave": _leave,
}  # fmt: skip

if __name__ == "__main__":
    main()
