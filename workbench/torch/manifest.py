"""The manifest of a sharded checkpoint: which files belong to it, their sizes and SHA-256, and who may have them.

A checkpoint is a folder with ``manifest.json`` and an inner folder, which the manifest names. The replacement of the
manifest makes another inner folder the current one, in one step.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import shutil
import stat
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from workbench.errors import InvalidRequest
from workbench.host import files

MANIFEST = "manifest.json"
_FORMAT = 1
_INNER = "shards-"
_UUID = "[0-9a-f]" * 32
# DCP's description of all other files, a pickle.
METADATA = ".metadata"


def new_shards(folder: Path) -> Path:
    """Create an inner folder for the files of a new checkpoint, and the folder if it is missing.

    Raises
    ------
    InvalidRequest
        If a folder cannot be created, or another user owns the folder, or can change it.
    """
    shards = folder / f"{_INNER}{uuid.uuid4().hex}"
    try:
        folder.mkdir(mode=0o755, exist_ok=True)
        _check_owner(folder.resolve())
        # Other users cannot change what they cannot enter.
        shards.mkdir(mode=0o700)
    except OSError as error:
        raise InvalidRequest(
            f"checkpoint {folder}: rank 0 on {platform.node()} cannot create the folder {error.filename} "
            f"({error.strerror}); choose a folder whose parent exists, and in which you have permission to write"
        ) from error
    return shards


def check_shared(shards: Path) -> None:
    """Raise InvalidRequest if the folders of `new_shards`, which another rank has created, are not on this node."""
    for path in (shards.parent, shards):
        # A node may remember that a file does not exist; but the file system itself refuses a second folder of a name.
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            continue
        except OSError as error:
            reason = error.strerror
        else:
            reason = "a new folder of that name can be created there"
            # Another rank of the node may have created the inner folder in the meantime.
            with contextlib.suppress(OSError):
                path.rmdir()
        raise InvalidRequest(
            f"checkpoint {shards.parent}: rank 0 has created the folder {path}, which {platform.node()} does not have "
            f"({reason}); choose a folder on a file system that all nodes share"
        )


def plain(folder: Path, values: dict[str, Any]) -> str:
    """Return values as JSON; raise InvalidRequest if JSON does not have them."""
    try:
        return json.dumps(values)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(
            f"checkpoint {folder}: some of the values {', '.join(values)} are not plain ({error}); pass numbers, "
            "texts, lists and dictionaries"
        ) from error


def described(files: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """Return size and SHA-256 of files by their names."""
    found = {}
    for file in files:
        with file.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        found[file.name] = {"bytes": file.stat().st_size, "sha256": digest}
    return found


def commit(shards: Path, **entries: Any) -> None:
    """Make an inner folder the current checkpoint, with the entries of its manifest, and remove former ones."""
    content = {"format": _FORMAT, "shards": shards.name, **entries}
    content["sha256"] = _digest(content)
    files.sync_folder(shards)  # before the manifest that names its files
    files.replace(shards.parent / MANIFEST, json.dumps(content, indent=1).encode(), 0o644)
    for former in shards.parent.glob(f"{_INNER}{_UUID}"):
        if former != shards:
            shutil.rmtree(former, ignore_errors=True)
    for part in shards.parent.glob(f".{MANIFEST}.{_UUID}"):
        part.unlink()


def _digest(entries: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(entries).encode()).hexdigest()


def read(folder: Path) -> dict[str, Any]:
    """Return the manifest of a folder; raise InvalidRequest if it is missing, damaged, or of another user."""
    file = folder / MANIFEST
    try:
        _check_owner(folder.resolve())
        # The file that is checked is the one that is read, although its name may change.
        with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW), "rb") as content:
            _check_owner(file, os.fstat(content.fileno()))
            text = content.read()
    except FileNotFoundError as error:
        raise InvalidRequest(
            f"checkpoint {folder}: the folder has no {MANIFEST}, so save_sharded() has completed no checkpoint there; "
            "choose another folder"
        ) from error
    except OSError as error:
        raise InvalidRequest(
            f"checkpoint {folder}: {MANIFEST} must be a file that you can read, and no link ({error.strerror}); "
            "restore the file, or load another checkpoint"
        ) from error
    try:
        manifest: dict[str, Any] = json.loads(text)
        names = {manifest["shards"], *manifest["files"]}
        whole = manifest.pop("sha256") == _digest(manifest) and manifest["format"] == _FORMAT
        whole = whole and manifest.keys() >= {"model", "stepped", "values"}
        whole = whole and METADATA in manifest["files"] and all(Path(name).name == name for name in names)
    except (ValueError, KeyError, TypeError, AttributeError):
        whole = False
    if not whole:
        raise InvalidRequest(
            f"checkpoint {folder}: {MANIFEST} is damaged, or was written by another version of the workbench; restore "
            "the file, or load another checkpoint"
        )
    return manifest


def check(folder: Path, manifest: dict[str, Any], rank: int, size: int) -> None:
    """Raise InvalidRequest if the folders, DCP's metadata or the part of a rank of the other files are not as written.

    Each rank loads the metadata, a pickle, so each rank checks the metadata and the folders.
    """
    shards, files = folder / manifest["shards"], manifest["files"]
    for part in (folder.resolve(), shards):
        # Without them the metadata is missing, and the error names the metadata.
        if part.exists():
            _check_owner(part)
    for name in (METADATA, *sorted({*files} - {METADATA})[rank::size]):
        _check_file(shards / name, files[name])


def _check_file(file: Path, expected: Any) -> None:
    """Raise InvalidRequest unless a file belongs to the user and has the expected size and SHA-256."""
    if not file.exists():
        raise InvalidRequest(
            f"checkpoint {file.parent.parent}: {file.parent.name} has no file {file.name} on this node; restore the "
            "file, load another checkpoint, or choose a file system that all nodes share"
        )
    _check_owner(file)
    if (found := described([file])[file.name]) != expected:
        raise InvalidRequest(
            f"checkpoint {file.parent.parent}: {file.parent.name}/{file.name} has changed since it was written (found "
            f"{found}, expected {expected}); restore the file, or load another checkpoint"
        )


def _check_owner(path: Path, status: os.stat_result | None = None) -> None:
    """Raise InvalidRequest if another user owns a file or a folder, or can change it."""
    status, user = status or path.lstat(), os.geteuid()
    if status.st_uid != user:
        raise InvalidRequest(
            f"checkpoint: {path} belongs to user {status.st_uid}, not to you ({user}), and a checkpoint can run code "
            "when it is loaded; if you trust that user, copy the folder, and load the copy"
        )
    if stat.S_IMODE(status.st_mode) & 0o022:
        raise InvalidRequest(
            f"checkpoint: other users can change {path} (mode {stat.S_IMODE(status.st_mode):o}), and a checkpoint can "
            f"run code when it is loaded; if you trust its content, close it with: chmod go-w '{path}'"
        )
