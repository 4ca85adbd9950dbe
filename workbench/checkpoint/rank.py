"""Functions of a restore on the ranks: in a call, or in a task for a block."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench.checkpoint import arrays, folder, frames, kept, save, values
from workbench.checkpoint.folder import Version
from workbench.gpu.tensors import on_device
from workbench.placement.pinning import PER

KINDS_OF_FRAMES = {"frame", "series"}
_CHECKS: dict[str, Callable[..., None]] = {
    "array": arrays.check,
    "matrix": arrays.check,
    "frame": frames.check,
    "series": frames.check,
    save.OBJECT: lambda *_: None,
    kept.CALL: kept.check,
}
_DEVICES = (None, "cpu", "cuda", "xpu", "mps")


def read_version(_: Any, path: str, number: int | None) -> Version:
    """Return a version and its manifest, whose entries are checked; `path` may be the name of a cluster."""
    version = folder.read(folder.of_name(Path(path or kept.store_folder())), number)
    try:
        for name, entry in version.entries.items():
            _CHECKS[entry["kind"]](name, entry, version.files)
            if entry["kind"] not in (save.OBJECT, kept.CALL):
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
        if entry["kind"] == save.OBJECT:
            files = (values.VALUE, values.ARRAYS)
            found[name] = [folder.read_file(version.folder, f"{name}/{file}", infos[file]) for file in files]
        elif entry["kind"] in KINDS_OF_FRAMES:
            found[name] = frames.read_types(version.folder, name, entry, infos[frames.TYPES])
        elif entry["kind"] == kept.CALL:
            found[name] = kept.read(version, name)
        else:
            found[name] = arrays.empty(entry)
    return found


def read_block(path: str, name: str, entry: Mapping[str, Any], place: Any) -> Any:
    """Return a block: the rows at a place, which is two rows of an array, or parts of the files of a dataframe."""
    if entry["kind"] in KINDS_OF_FRAMES:
        return frames.read(path, name, entry, place)
    block = arrays.read(path, name, entry, *place)
    return block if entry["device"] is None else on_device(block, entry["device"])
