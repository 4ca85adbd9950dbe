"""The position of a thread of this rank: its MPI operation, the time since its begin, and the line of user code."""

from __future__ import annotations

import functools
import site
import sys
import sysconfig
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from workbench.text import brief

if TYPE_CHECKING:
    from dask.typing import Key
    from distributed import Worker

# The file of a function that Dask has sent by value with cloudpickle 3.1.3.
_BY_VALUE = "<dynamic-code>"
# Characters of a stack in a message.
_LONGEST = 40_000


def whereabouts(
    thread_ident: int | None, started: float, operation: str | None = None, since: float = 0.0, count: int = 0
) -> dict[str, Any]:
    """Return the position of a thread that runs a call, a cell or a task, which began at `started` of `time.monotonic`.

    Parameters
    ----------
    operation, since, count
        The MPI operation in progress, when the thread entered or left an operation, and the operations begun.

    Returns
    -------
    dict
        ``operation`` (None: in user code), ``importing`` whether a module is being imported, ``seconds`` since the
        thread entered or left an operation, ``count`` of operations begun, ``place`` and ``function`` of the innermost
        frame of user code, ``stack`` as text, outermost frame of user code first.
    """
    frames = _frames(thread_ident)
    users = [number for number, frame in enumerate(frames) if is_users(frame.f_code.co_filename)]
    # Without a frame of user code, the stack begins with the code that the workbench has called.
    own = workbench_folder()
    shown = frames[users[0] :] if users else [each for each in frames if not each.f_code.co_filename.startswith(own)]
    innermost = frames[users[-1]] if users else (shown[-1] if shown else None)
    stack = traceback.StackSummary.extract((frame, frame.f_lineno) for frame in shown)
    return {
        "operation": operation,
        "importing": any(map(_is_import, frames)),
        "seconds": max(0.0, time.monotonic() - max(since, started)),
        "count": count,
        "place": place(*_line(innermost)) if innermost else "?",
        "function": brief(innermost.f_code.co_name) if innermost else "?",
        "stack": brief("".join(stack.format()), _LONGEST),
    }


def of_tasks(worker: Worker, tasks: Mapping[Key, float]) -> dict[str, Any] | None:
    """Return the position of the task that has run longest on this rank; None if no task runs.

    Parameters
    ----------
    tasks
        Begin of each running task by its key, in seconds of `time.monotonic`.

    Returns
    -------
    dict
        As of `whereabouts`, with the prefix of the key as ``task``, the number of running tasks as ``tasks``, and the
        seconds since the begin of the task. Without a frame of user code ``place`` is ``"?"``.
    """
    from dask.utils import key_split

    if not tasks:
        return None
    key = min(tasks, key=lambda each: tasks[each])
    with worker.active_threads_lock:
        # A coroutine runs on the event loop, not on a thread of the tasks.
        thread = next((ident for ident, active in worker.active_threads.items() if active == key), None)
    position = whereabouts(thread, tasks[key])
    if not any(is_users(frame.f_code.co_filename) for frame in _frames(thread)):
        position["place"] = "?"  # the innermost frame is one of Dask
    return position | {
        "task": brief(key_split(key)),
        "tasks": len(tasks),
        "seconds": max(0.0, time.monotonic() - tasks[key]),
    }


def is_importing(thread_ident: int) -> bool:
    """Return whether a thread imports a module."""
    return any(map(_is_import, _frames(thread_ident)))


def _is_import(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__") == "importlib._bootstrap"


def place(file: str, line: int, function: str) -> str:
    """Return a line of a function, in a file or in a cell, as text."""
    path = Path(file)
    # The file names of cells are numbers.
    if path.parent.name.startswith("ipykernel_"):
        cell = "the cell" if function == "<module>" else f"the cell with {brief(function)}"
        return f"line {line} of {cell}"
    if file == _BY_VALUE:
        return f"line {line} of {brief(function)}"
    # Each package has a file with this name.
    name = f"{path.parent.name}/{path.name}" if path.name == "__init__.py" else path.name
    return f"{brief(name)}:{line}"


def _line(frame: FrameType) -> tuple[str, int, str]:
    return frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name


def _frames(thread_ident: int | None) -> list[FrameType]:
    """Return the frames of a thread, the outermost first."""
    # The thread keeps running, so the frames may already be outdated.
    frames = []
    frame = None if thread_ident is None else sys._current_frames().get(thread_ident)  # noqa: SLF001  (documented)
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames[::-1]


def is_users(file: str) -> bool:
    """Return whether a file of code belongs to the user, not to an installed package or the workbench."""
    is_generated = file.startswith("<") and not file.startswith(("<ipython-input", "<stdin", _BY_VALUE))
    return not is_generated and not file.startswith(_installed())


@functools.cache
def workbench_folder() -> tuple[str, ...]:
    """Return the folder of the workbench, as an argument of `str.startswith`."""
    return (f"{Path(__file__).parent}/",)


@functools.cache
def _installed() -> tuple[str, ...]:
    """Return the folders of the standard library, of installed packages, of the workbench and of Cython's sources."""
    paths = sysconfig.get_paths()
    folders = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders |= {*site.getsitepackages(), site.getusersitepackages()}
    return (*(f"{folder}/" for folder in folders), *workbench_folder(), "src/mpi4py/")
