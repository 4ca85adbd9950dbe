"""Changes of a process by code that restores nothing, and what later code finds."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


class Refuses:
    """A stream that raises at each use."""

    def __getattr__(self, name: str) -> Any:
        raise ValueError(name)


def _set(**streams: Any) -> None:
    vars(sys).update(streams)


def _closed() -> Any:
    with open(os.devnull, "w") as stream:
        return stream


def _close() -> None:
    sys.stdout.close()
    sys.stderr.close()


def _wrap() -> None:
    sys.stdout = io.TextIOWrapper(sys.__stdout__.buffer, encoding="ascii")
    sys.stderr = io.TextIOWrapper(sys.__stderr__.detach(), encoding="ascii")


def _close_files() -> None:
    os.close(1)
    os.close(2)


def _replace_files() -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    os.close(null)


def _set_handlers() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, lambda *_: None)


def _set_timer() -> None:
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)


CHANGES: dict[str, Callable[[], Any]] = {
    "none": lambda: _set(stdin=None, stdout=None, stderr=None),
    "closed": lambda: _set(stdout=_closed(), stderr=_closed()),
    "devnull": lambda: _set(stdout=open(os.devnull, "w"), stderr=open(os.devnull, "w")),  # noqa: SIM115
    "memory": lambda: _set(stdout=io.StringIO(), stderr=io.StringIO()),
    "refuses": lambda: _set(stdout=Refuses(), stderr=Refuses()),
    "close": _close,
    "wrap": _wrap,
    "close files": _close_files,
    "replace files": _replace_files,
    "directory": lambda: os.chdir("/"),
    "umask": lambda: os.umask(0),
    "recursion limit": lambda: sys.setrecursionlimit(5000),
    "numpy": lambda: np.seterr(all="raise"),
}
"""Changes by any thread."""

ON_MAIN_THREAD: dict[str, Callable[[], Any]] = {"signal handlers": _set_handlers, "timer": _set_timer}
"""Changes by the main thread only."""


def found() -> dict[str, Any]:
    """Return what code finds in this process."""
    umask = os.umask(0o077)
    os.umask(umask)
    return {
        "streams": [repr(stream) for stream in (sys.stdin, sys.stdout, sys.stderr)],
        "files": [str(Path(f"/proc/self/fd/{number}").readlink()) for number in (1, 2)],
        "directory": str(Path.cwd()),
        "umask": umask,
        "recursion limit": sys.getrecursionlimit(),
        "numpy": np.geterr(),
        "handlers": [repr(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGALRM)],
        "timer": signal.getitimer(signal.ITIMER_REAL),
    }
