"""Where a thread of this rank is: in which operation of MPI since when, and at which line of the user's code."""

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

from workbench.mpi.call_state import CallState


def whereabouts(watch: CallState, thread_ident: int, started: float) -> dict[str, Any]:
    """Tell where a thread is.

    Parameters
    ----------
    watch
        Of the call or cell that it runs.
    thread_ident
        As `threading.get_ident` returns it.
    started
        When the call or cell began, as `time.monotonic` tells it.

    Returns
    -------
    dict
        ``operation`` (None: it is in the code of the user), ``seconds`` since it entered or left one, ``count`` of
        operations begun, ``place`` and ``function`` of the innermost frame of user code, ``stack`` as text,
        outermost frame of user code first.
    """
    operation, since, count = watch.operation, watch.since, watch.count
    frames = _frames(thread_ident)
    users = [number for number, frame in enumerate(frames) if is_users(frame)]
    # where all the code is of installed packages: what the workbench has called
    shown = frames[users[0] :] if users else [frame for frame in frames if not _within(frame, _ours())]
    innermost = frames[users[-1]] if users else (shown[-1] if shown else None)
    stack = traceback.StackSummary.extract((frame, frame.f_lineno) for frame in shown)
    return {
        "operation": operation,
        "seconds": max(0.0, time.monotonic() - max(since, started)),
        "count": count,
        "place": place(innermost) if innermost else "?",
        "function": innermost.f_code.co_name if innermost else "?",
        "stack": "".join(stack.format()),
    }


def place(frame: FrameType) -> str:
    """Return in words where a frame is: a line of a file, or of a cell."""
    path = Path(frame.f_code.co_filename)
    # The files of cells have numbers for names.
    if path.parent.name.startswith("ipykernel_"):
        function = frame.f_code.co_name
        where = "the cell" if function == "<module>" else f"the cell with {function}"
        return f"line {frame.f_lineno} of {where}"
    return f"{path.name}:{frame.f_lineno}"


def _frames(thread_ident: int) -> list[FrameType]:
    """Return the frames of a thread, the outermost first."""
    # The thread runs on meanwhile: what is told may be a moment old.
    frames = []
    frame = sys._current_frames().get(thread_ident)  # noqa: SLF001  (documented)
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames[::-1]


def is_users(frame: FrameType) -> bool:
    """Tell whether a frame is of the user's code, not of an installed package or the workbench."""
    name = frame.f_code.co_filename
    made = name.startswith("<") and not name.startswith(("<ipython-input", "<stdin"))
    return not made and not _within(frame, _installed())


def _within(frame: FrameType, folders: tuple[str, ...]) -> bool:
    return frame.f_code.co_filename.startswith(folders)


@functools.cache
def _ours() -> tuple[str, ...]:
    return (f"{Path(__file__).parents[1]}/",)


@functools.cache
def _installed() -> tuple[str, ...]:
    """Return the folders of the standard library, of installed packages and of the workbench; Cython's sources, too."""
    paths = sysconfig.get_paths()
    folders = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders |= {*site.getsitepackages(), site.getusersitepackages()}
    return (*(f"{folder}/" for folder in folders), *_ours(), "src/mpi4py/")
