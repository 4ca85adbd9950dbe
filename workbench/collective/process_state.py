"""The state of the process of a rank that each call and each cell leaves as before: streams, directory and others."""

from __future__ import annotations

import _signal
import operator
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from contextvars import copy_context
from typing import Any, NamedTuple, ParamSpec, TypeVar

from workbench.host.output import flush_c

P = ParamSpec("P")
T = TypeVar("T")

_SIGNALS = sorted(set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP})
# Timers whose signal ends a process without the handler of the user.
_TIMERS = {
    signal.SIGALRM: signal.ITIMER_REAL,
    signal.SIGVTALRM: signal.ITIMER_VIRTUAL,
    signal.SIGPROF: signal.ITIMER_PROF,
}

streams: dict[str, Any] = {}
"""The streams of this rank by their name in `sys`; empty in other processes."""
tasks: Collection[object] = ()
"""The Dask tasks that run in this process."""
# A duplicate of the file descriptors 1 and 2, which are the log of a rank; None in other processes.
_log: int | None = None

_lock = threading.Lock()
_running = 0


class _State(NamedTuple):
    directory: str | None
    umask: int
    recursion_limit: int


_streams_before: list[Any]
# The state between calls, cells and tasks. What tasks set, they may have set for a while.
_between: _State
# Whether the last call or cell has left another state, because tasks ran at the end, which may have set the state.
_is_due = False


def keep_output() -> None:
    """Keep the streams and the log that this process has now: calls and cells leave these."""
    global _log, _between
    streams.update((name, getattr(sys, name)) for name in ("stdin", "stdout", "stderr"))
    _log, _between = os.dup(1), _state()


def set_stream(name: str, stream: Any) -> None:
    """Replace a stream of this rank, also while a call runs."""
    streams[name] = stream
    setattr(sys, name, stream)


def replace_broken_streams() -> None:
    """Replace streams without a working `flush`, which a call that still runs may have set."""
    for name, works in _changed().items():
        if not works:
            setattr(sys, name, streams[name])


def restored(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function with code of the user, and restore the state of the process.

    Notes
    -----
    A call and a cell may run at the same time, on two threads. The state before the first of them is restored at the
    end of the last. Until then only streams that cannot be flushed are restored, because the engine flushes streams
    after each cell. The directory, the umask and the recursion limit may be those of a task, so they are restored at
    the end of a call or a cell, or at the beginning of the next, at which no task runs. Python calls signal handlers on
    the main thread only, which also sets them, so that only cells change handlers. `numpy.seterr` sets a context
    variable, as all of which the function has copies.
    """
    global _running, _streams_before, _between, _is_due  # noqa: PLW0603
    changed = _changed()
    with _lock:
        if not _running:
            _streams_before = _current()
            if not tasks:
                if _is_due:
                    _restore(_between)
                else:
                    _between = _state()
        if changed:
            _restore_streams(changed)
        _running += 1
    on_main_thread = threading.current_thread() is threading.main_thread()
    # `signal.getsignal` also makes enumerations, which takes 20 times as long.
    handlers = [_signal.getsignal(number) for number in _SIGNALS] if on_main_thread else []
    try:
        return copy_context().run(function, *args, **kwargs)
    finally:
        try:
            _restore_handlers(handlers)
        except BaseException:  # noqa: BLE001  (raised by a handler of the user, whose signal comes now)
            _restore_handlers(handlers)
        finally:
            changed = _changed()
            with _lock:
                _running -= 1
                if changed:
                    _restore_streams(changed)
                if not _running:
                    _restore_log()
                    if tasks:
                        _is_due = _state() != _between
                    else:
                        _is_due = False
                        _restore(_between)


def _current() -> list[Any]:
    return list(map(vars(sys).get, streams))


def _changed() -> dict[str, bool]:
    """Return the names of the changed streams, and whether they can be flushed. Without the lock: this may wait."""
    current = _current()
    if not any(map(operator.is_not, current, streams.values())):
        return {}
    return {
        name: _flush(stream)
        for (name, kept), stream in zip(streams.items(), current, strict=True)
        if stream is not kept
    }


def _state() -> _State:
    # What another thread creates now gets no more permissions than the user wants.
    umask = os.umask(0o077)
    os.umask(umask)
    return _State(_directory(), umask, sys.getrecursionlimit())


def _directory() -> str | None:
    try:
        return os.getcwd()  # noqa: PTH109  (a path object takes longer)
    except OSError:  # a deleted directory
        return None


def _flush(stream: Any) -> bool:
    """Flush a stream of the user; return whether this was possible."""
    try:
        stream.flush()
    except BaseException:  # noqa: BLE001  (whatever the class of the user raises)
        return False
    return True


def _restore_streams(changed: dict[str, bool]) -> None:
    for name, before in zip(streams, _streams_before, strict=True):
        # Never to `before`, which a task may have set for a while.
        if not changed.get(name, True) or (not _running and vars(sys).get(name) is not before):
            setattr(sys, name, streams[name])


def _restore_log() -> None:
    # A comparison of files could ask a file server.
    if _log is not None and not _position(_log) == _position(1) == _position(2):
        _flush(sys.stdout)
        flush_c()
        os.dup2(_log, 1)
        os.dup2(_log, 2)


def _restore(state: _State) -> None:
    if state == _state():
        return
    sys.setrecursionlimit(state.recursion_limit)
    os.umask(state.umask)
    if state.directory is not None:
        with suppress(OSError):  # deleted meanwhile
            os.chdir(state.directory)


def _position(number: int) -> int:
    try:
        return os.lseek(number, 0, os.SEEK_CUR)
    except OSError as error:
        return -(error.errno or 0)


def _restore_handlers(handlers: list[Any]) -> None:
    for number, handler in zip(_SIGNALS, handlers, strict=False):
        # None is a handler that C code has installed, which Python cannot install.
        if handler is not None and _signal.getsignal(number) is not handler:
            if number in _TIMERS:
                signal.setitimer(_TIMERS[number], 0)
            signal.signal(number, handler)
