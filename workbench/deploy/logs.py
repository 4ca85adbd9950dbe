"""The log files of a cluster, while it runs and after it has ended."""

from __future__ import annotations

import re
from pathlib import Path

from workbench.deploy import registry
from workbench.deploy.registry import Record
from workbench.errors import ClusterNotFound, InvalidRequest, did_you_mean
from workbench.log.printable import printable

_KINDS = ("head", "job", "world", "rank")

COMMAND, FAILURE = "$ ", "! "
"""How lines of the log of a world begin: the command line of a start, and why a rank failed before the world was
ready."""


def folder(name: str, key: str | None = None) -> Path:
    """Return the folder of the logs of a cluster.

    Parameters
    ----------
    name
        Its name.
    key
        Its identity; None: the cluster that has the name, or the one that last had it.

    Raises
    ------
    ClusterNotFound
        If there never was one, or its logs have been removed since.
    """
    if key is None:
        try:
            return registry.read(name).logs
        except ClusterNotFound:
            if (found := registry.newest_logs(name)) is None:
                raise
            return found
    path = registry.logs_folder() / f"{registry.check_name(name)}-{key[:8]}"
    if not re.fullmatch(r"[0-9a-f]{8,32}", key) or not path.is_dir():
        raise ClusterNotFound(f"cluster {name!r} with the id {key!r} has no logs; they may have been removed.")
    return path


def read(path: Path, rank: int | str | None = None) -> str:
    """Return the logs in a folder as one text, `printable`.

    Parameters
    ----------
    path
        The folder.
    rank
        A rank, as its worker is named (``3``, or ``"w1.3"`` in a later world); None: everything, each file
        under its name.

    Raises
    ------
    InvalidRequest
        If there is no log of that rank.
    """
    files = {file.stem: file for file in sorted(path.glob("*.log"), key=_order)}
    if rank is None:
        return "\n".join(f"==> {stem} <==\n{_text(file)}" for stem, file in files.items())
    ranks = [stem.removeprefix("rank-") for stem in files if stem.startswith("rank-")]
    if str(rank) not in ranks:
        raise InvalidRequest(f"no log of rank {rank!r}; {did_you_mean(str(rank), ranks)}")
    return _text(files[f"rank-{rank}"])


def of_world(record: Record, index: int) -> Path:
    """Return the log of a world: what its ``mpiexec`` says, and its ranks that fail while starting."""
    return record.logs / f"world-{index}.log"


def tail(record: Record, lines: int = 15, *, head: bool = True) -> str:
    """Return the end of the log that most likely tells why a cluster failed, `printable`, under its path.

    Parameters
    ----------
    record
        The cluster.
    lines
        The most lines to return.
    head
        Whether that can be the head's own log.

    Notes
    -----
    Ranks that fail while starting write to the log of their world, of which the last start counts; the head's own comes
    second.
    """
    worlds = sorted(record.logs.glob("world-*.log"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in (*worlds, *([record.logs / "head.log"] if head else [])):
        # What a world says at a start begins with its command line.
        started = f"\n{_text(path)}".rpartition(f"\n{COMMAND}")
        said = [line for line in started[2].splitlines()[bool(started[1]) :] if line.strip()]
        if said:
            # What the first rank says of its failure counts most; others may fail for it, and MPI has words about that.
            failures = [number for number, line in enumerate(said) if line.startswith(FAILURE)]
            end = failures[0] + 1 if failures else len(said)
            shown = [f"    {line.removeprefix(FAILURE)}" for line in said[max(0, end - lines) : end]]
            return "\n".join([f"{path}:", *shown])
    return f"{record.logs} has no output" if head else ""


def _text(path: Path) -> str:
    try:
        return printable(path.read_text(encoding="utf-8", errors="replace"))
    except FileNotFoundError:
        return ""


def _order(path: Path) -> tuple[int, str, int]:
    kind, _, name = path.stem.partition("-")
    world, _, rank = name.rpartition(".")
    place = _KINDS.index(kind) if kind in _KINDS else len(_KINDS)
    return place, world, int(rank) if rank.isdecimal() else 0
