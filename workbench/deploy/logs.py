"""The log files of a cluster, while it runs and after it has ended."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from workbench.errors import InvalidRequest
from workbench.host import output
from workbench.host.files import make_private, opener
from workbench.text import printable

_KINDS = ("head", "job", "world", "rank")

COMMAND, FAILURE = "$ ", "! "
"""Prefixes of lines in the log of a world: the command line of a start, and the failure of a rank before the world was
ready."""


def read(path: Path, rank: int | str | None = None) -> str:
    """Return the logs in a folder as one `printable` text, with the names of the files, or the log of one rank.

    Raises
    ------
    InvalidRequest
        If the rank has no log.
    """
    files = {file.stem: file for file in sorted(path.glob("*.log"), key=_order)}
    if rank is None:
        return "\n".join(f"==> {stem} <==\n{_text(file)}" for stem, file in files.items())
    ranks = [stem.removeprefix("rank-") for stem in files if stem.startswith("rank-")]
    if str(rank) not in ranks:
        raise InvalidRequest(
            f"rank {rank!r} has no log.",
            option="rank",
            given=rank,
            allowed=ranks,
            hint=f"Ranks with a log: {', '.join(ranks) or 'none'}.",
        )
    return _text(of_rank(path, rank))


def of_world(folder: Path, index: int) -> Path:
    """Return the log of a world, with the output of ``mpiexec`` and of ranks that fail while starting."""
    return folder / f"world-{index}.log"


def of_rank(folder: Path, rank: int | str) -> Path:
    """Return the log of a rank, among the logs of a cluster."""
    return folder / f"rank-{rank}.log"


def append(path: Path) -> BinaryIO:
    """Open a log to write at its end; create the log, and its folder, which users may remove to free space.

    On a full disk what is written is lost, without an error.
    """
    try:
        make_private(path.parent)
        return output.append(path, opener)
    except OSError as error:
        if error.errno not in output.FULL:
            raise
        return output.append(Path(os.devnull))


def tail(folder: Path, lines: int = 15, *, head: bool = True) -> str:
    """Return the end of the log in a folder that most likely has the reason of a failure, `printable`, with its path.

    Ranks that fail while starting write to the log of their world, so its last start is preferred to the log of the
    head, which is used only if `head` is set.
    """
    worlds = sorted(folder.glob("world-*.log"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in (*worlds, *([folder / "head.log"] if head else [])):
        # The output of a start begins with its command line.
        start = f"\n{_text(path)}".rpartition(f"\n{COMMAND}")
        lines_of_start = [line for line in start[2].splitlines()[bool(start[1]) :] if line.strip()]
        if lines_of_start:
            # The first failure of a rank is the cause. Other ranks and MPI report consequences.
            failures = [number for number, line in enumerate(lines_of_start) if line.startswith(FAILURE)]
            end = failures[0] + 1 if failures else len(lines_of_start)
            shown = [f"    {line.removeprefix(FAILURE)}" for line in lines_of_start[max(0, end - lines) : end]]
            return "\n".join([f"{path}:", *shown])
    return f"{folder} has no output" if head else ""


def _text(path: Path) -> str:
    try:
        return printable(path.read_text(encoding="utf-8", errors="replace"))
    except FileNotFoundError:
        return ""


def _order(path: Path) -> tuple[int, int]:
    kind, _, number = path.stem.partition("-")
    place = _KINDS.index(kind) if kind in _KINDS else len(_KINDS)
    return place, int(number) if number.isdecimal() else 0
