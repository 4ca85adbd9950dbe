"""Functions of a save and of a restore on the ranks: in a call, or in a task for a block."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench.checkpoint import arrays, folder, frames, values
from workbench.checkpoint.folder import FileInfo, Version
from workbench.gpu.tensors import is_tensor, on_device
from workbench.placement.pinning import PER

KINDS_OF_FRAMES, OBJECT = {"frame", "series"}, "object"
_CHECKS: dict[str, Callable[..., None]] = {
    "array": arrays.check,
    "matrix": arrays.check,
    "frame": frames.check,
    "series": frames.check,
    OBJECT: lambda *_: None,
}
_DEVICES = (None, "cpu", "cuda", "xpu", "mps")


def begin(_: Any, path: str) -> str:
    """Create the folder of a new version."""
    return str(folder.begin(Path(path)))


def write(comm: Any, block: Any, part: str, name: str) -> tuple[dict[str, Any], dict[str, FileInfo]]:
    """Write the block of this rank; return the entry of the manifest and the files."""
    write = frames.write if hasattr(block, "iloc") else arrays.write
    entry, written = write(comm, block, part, name)
    return entry | {"device": block.device.type if is_tensor(block) else None}, written


def commit(_: Any, part: str, keep: int, manifest: dict[str, Any], contents: dict[str, dict[str, bytes]]) -> str:
    """Write the objects, and complete the version; return its folder."""
    root = Path(part)
    for name, parts in contents.items():
        manifest["entries"][name] = {"kind": OBJECT}
        with folder.worded(root.parent, f"write {name}"):
            (root / name).mkdir(mode=0o700)
            for file, content in parts.items():
                manifest["files"][f"{name}/{file}"] = folder.write(root / name / file, [content])
    return str(folder.commit(root, keep, created=time.time(), **manifest))


def discard(_: Any, part: str) -> None:
    """Remove the folder of a version that is not completed."""
    folder.discard(Path(part))


def read_version(_: Any, path: str, number: int | None) -> Version:
    """Return a version and its manifest, whose entries are checked."""
    version = folder.read(Path(path), number)
    try:
        for name, entry in version.entries.items():
            _CHECKS[entry["kind"]](name, entry, version.files)
            if entry["kind"] != OBJECT:
                PER.index(entry["per"])
                _DEVICES.index(entry["device"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise folder.damaged(version.folder, folder.MANIFEST) from error
    return version


def read_parts(_: Any, version: Version, names: Sequence[str]) -> dict[str, Any]:
    """Return the files of objects, and other collections without rows, by their names."""
    found: dict[str, Any] = {}
    for name in names:
        entry, infos = version.entries[name], version.files_of(name)
        if entry["kind"] == OBJECT:
            files = (values.VALUE, values.ARRAYS)
            found[name] = [folder.read_file(version.folder, f"{name}/{file}", infos[file]) for file in files]
        elif entry["kind"] in KINDS_OF_FRAMES:
            found[name] = frames.read_types(version.folder, name, entry, infos[frames.TYPES])
        else:
            found[name] = arrays.empty(entry)
    return found


def read_block(path: str, name: str, entry: Mapping[str, Any], place: Any) -> Any:
    """Return a block: the rows at a place, which is two rows of an array, or parts of the files of a dataframe."""
    if entry["kind"] in KINDS_OF_FRAMES:
        return frames.read(path, name, entry, place)
    block = arrays.read(path, name, entry, *place)
    return block if entry["device"] is None else on_device(block, entry["device"])
