"""The position of a thread of this rank: its MPI operation, the time since its begin, and the line of user code."""

from __future__ import annotations

import functools
import site
import sys
import sysconfig
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import Any

from workbench.log.printable import brief
from workbench.mpi.call_state import CallState

# Characters of a stack in a message.
_LONGEST = 40_000


def whereabouts(state: CallState, thread_ident: int, started: float) -> dict[str, Any]:
    """Return the position of a thread that runs a call or a cell, which began at `started` of `time.monotonic`.

    Returns
    -------
    dict
        ``operation`` (None: in user code), ``importing`` whether a module is being imported, ``seconds`` since the
        thread entered or left an operation, ``count`` of operations begun, ``place`` and ``function`` of the innermost
        frame of user code, ``stack`` as text, outermost frame of user code first.
    """
    operation, since, count = state.operation, state.since, state.count
    frames = _frames(thread_ident)
    users = [number for number, frame in enumerate(frames) if is_users(frame)]
    # Without a frame of user code, the stack begins with the code that the workbench has called.
    shown = frames[users[0] :] if users else [frame for frame in frames if not _within(frame, _workbench_folder())]
    innermost = frames[users[-1]] if users else (shown[-1] if shown else None)
    stack = traceback.StackSummary.extract((frame, frame.f_lineno) for frame in shown)
    return {
        "operation": operation,
        "importing": any(map(_is_import, frames)),
        "seconds": max(0.0, time.monotonic() - max(since, started)),
        "count": count,
        "place": place(innermost) if innermost else "?",
        "function": brief(innermost.f_code.co_name) if innermost else "?",
        "stack": brief("".join(stack.format()), _LONGEST),
    }


def is_importing(thread_ident: int) -> bool:
    """Return whether a thread imports a module."""
    return any(map(_is_import, _frames(thread_ident)))


def _is_import(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__") == "importlib._bootstrap"


def place(frame: FrameType) -> str:
    """Return the line of a frame, in a file or in a cell, as text."""
    path = Path(frame.f_code.co_filename)
    # The file names of cells are numbers.
    if path.parent.name.startswith("ipykernel_"):
        function = frame.f_code.co_name
        cell = "the cell" if function == "<module>" else f"the cell with {brief(function)}"
        return f"line {frame.f_lineno} of {cell}"
    return f"{brief(path.name)}:{frame.f_lineno}"


def _frames(thread_ident: int) -> list[FrameType]:
    """Return the frames of a thread, the outermost first."""
    # The thread keeps running, so the frames may already be outdated.
    frames = []
    frame = sys._current_frames().get(thread_ident)  # noqa: SLF001  (documented)
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames[::-1]


def is_users(frame: FrameType) -> bool:
    """Return whether a frame belongs to user code, not to an installed package or the workbench."""
    name = frame.f_code.co_filename
    is_generated = name.startswith("<") and not name.startswith(("<ipython-input", "<stdin"))
    return not is_generated and not _within(frame, _installed())


def _within(frame: FrameType, folders: tuple[str, ...]) -> bool:
    return frame.f_code.co_filename.startswith(folders)


@functools.cache
def _workbench_folder() -> tuple[str, ...]:
    return (f"{Path(__file__).parents[1]}/",)


@functools.cache
def _installed() -> tuple[str, ...]:
    """Return the folders of the standard library, of installed packages, of the workbench and of Cython's sources."""
    paths = sysconfig.get_paths()
    folders = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders |= {*site.getsitepackages(), site.getusersitepackages()}
    return (*(f"{folder}/" for folder in folders), *_workbench_folder(), "src/mpi4py/")
