"""Functions of a save on the ranks, each a separate call: begin a version, write what has a name, commit.

An empty `root` is the folder of what the cluster keeps.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.checkpoint import arrays, folder, frames, kept
from workbench.checkpoint.folder import FileInfo
from workbench.gpu.tensors import is_tensor

OBJECT = "object"
"""Kind of the entry of an object."""


@dataclass
class Part:
    """A version that is being written, as one rank knows it."""

    folder: str
    entries: dict[str, Any] = field(default_factory=dict)
    """Each entry of the manifest is known to one rank at least."""
    files: dict[str, FileInfo] = field(default_factory=dict)
    """The files that this rank has written."""
    without: set[str] | None = None
    """See `folder.commit`."""


# By the folder of the checkpoint. The functions of a save are separate calls, one for each saved collection.
_parts: dict[str, Part] = {}


def begin(comm: Any, root: str) -> None:
    """Create the folder of a new version; collective."""
    root = root or kept.store_folder()
    _parts[root] = Part(comm.bcast(str(folder.begin(Path(root))) if comm.rank == 0 else ""))


def part_of(root: str) -> Part:
    """Return the version that is being written in a folder."""
    return _parts[root or kept.store_folder()]


def write(comm: Any, block: Any, root: str, name: str, per: str) -> None:
    """Write the block of this rank; collective on the ranks with blocks."""
    part, write = part_of(root), frames.write if hasattr(block, "iloc") else arrays.write
    entry, written = write(comm, block, part.folder, name)
    part.entries[name] = entry | {"device": block.device.type if is_tensor(block) else None, "per": per}
    part.files |= written


def write_object(_: Any, root: str, name: str, contents: Mapping[str, bytes]) -> None:
    """Write the files of an object, on rank 0."""
    part = part_of(root)
    with folder.worded(Path(part.folder).parent, f"write {name}"):
        Path(part.folder, name).mkdir(mode=0o700)
        for file, content in contents.items():
            part.files[f"{name}/{file}"] = folder.write(Path(part.folder, name, file), [content])
    part.entries[name] = {"kind": OBJECT}


def write_kept(comm: Any, names: Sequence[str], dropped: Sequence[str]) -> None:
    """Write what calls keep, apart from `names`, which the notebook keeps; collective.

    The notebook keeps `dropped` names no longer.
    """
    part = part_of("")
    entries, files, without = kept.flush(comm, Path(part.folder), names)
    part.without = without.union(dropped) - entries.keys()
    if comm.rank == 0:
        part.entries |= entries
        part.files |= files


def commit(comm: Any, root: str, keep: int, cluster: str) -> str:
    """Complete the version of all ranks, and return its folder on rank 0; collective."""
    part = _parts.pop(root or kept.store_folder())
    parts = comm.gather((part.entries, part.files))
    if comm.rank:
        return ""
    entries: dict[str, Any] = {}
    files: dict[str, FileInfo] = {}
    for known, written in parts:
        entries |= known
        files |= written
    about = {"created": time.time(), "cluster": cluster, "ranks": comm.size, "entries": entries, "files": files}
    return str(folder.commit(Path(part.folder), keep, without=part.without, **about))


def discard(_: Any, root: str) -> None:
    """Remove the folder of a version that is not completed, on rank 0."""
    if part := _parts.pop(root or kept.store_folder(), None):
        folder.discard(Path(part.folder))
