"""The folder of a checkpoint: immutable versions, each complete from the moment when it has its name.

::

    PATH/v000007/manifest.json                      what the version has; bytes and CRC32C of each file
                 X/zarr.json, X/c.3.0               an array, which any reader of Zarr v3 reads
                 table/_types.arrow, 00003.parquet  a dataframe or series
                 model/value.json, model/arrays.npz an object
                 u/3/value.json, u/3/arrays.npz     the value of rank 3 that a call keeps
    PATH/.HEX.part/                                 a version that is being written

A version is written into a folder with another name, and the rename of this folder is the commit. No file of a version
is a pickle, no link below PATH is followed, and what is read has the checksum with which it was written.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import platform
import re
import shutil
import stat
import time
import uuid
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c
import numpy as np
import numpy.typing as npt

from workbench.errors import CheckpointNotFound, InvalidRequest
from workbench.host import files

MANIFEST = "manifest.json"
KEPT = "workbench-kept"
"""Name of the folder for what clusters keep, in their working directory."""
_FORMAT = 1
_VERSION, _PART = re.compile(r"v\d{6,9}"), re.compile(r"\.[0-9a-f]{32}\.part")
# The writer of a folder that has not changed for so long has died: no save takes a day.
_ABANDONED_S = 86400.0
# Bytes of one system call, which may write less.
_WRITE = 64 << 20
# Bytes of the CRC32C at the end of a sealed file.
SEAL = 4
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


Bytes = npt.NDArray[np.uint8]


class FileInfo(NamedTuple):
    """Bytes and CRC32C of a file, computed while the file was written."""

    bytes: int
    crc32c: int
    """Of the content before the seal."""
    sealed: bool = False
    """Whether the file ends with its CRC32C, as the codec ``crc32c`` of Zarr writes it."""


@dataclass(frozen=True)
class Version:
    """A complete version and its manifest."""

    folder: Path
    created: float
    """Seconds since the epoch."""
    cluster: str
    """Name of the cluster that has written the version."""
    ranks: int
    entries: dict[str, dict[str, Any]]
    """For each saved name its kind, and what reading needs."""
    files: dict[str, FileInfo]
    """The files by their paths in the folder."""

    @cached_property
    def number(self) -> int:
        """The number in the name of the folder."""
        return int(self.folder.name[1:])

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(each.bytes for each in self.files.values())

    def files_of(self, name: str) -> dict[str, FileInfo]:
        """Return the files of a saved name by their names."""
        prefix = f"{name}/"
        return {path.removeprefix(prefix): each for path, each in self.files.items() if path.startswith(prefix)}


# -- write ---------------------------------------------------------------------------------------------------


def begin(root: Path) -> Path:
    """Create the folder of a new version, and remove folders of writers that have died.

    Raises
    ------
    InvalidRequest
        If `root` cannot be created, belongs to another user, or other users can change it.
    """
    open_root(root)
    with worded(root, "create a folder"):
        for folder in root.iterdir():
            if _PART.fullmatch(folder.name) and time.time() - _last_change(folder) > _ABANDONED_S:
                shutil.rmtree(folder, ignore_errors=True)
        part = root / f".{uuid.uuid4().hex}.part"
        part.mkdir(mode=0o700)
    return part


def open_root(root: Path) -> None:
    """Create the folder of a checkpoint if it is missing; raise InvalidRequest as `begin` does."""
    with worded(root, "create a folder"):
        if root.parent.name == KEPT:
            root.parent.mkdir(mode=0o700, exist_ok=True)
        root.mkdir(mode=0o700, exist_ok=True)
        status = root.stat()
        if status.st_uid != os.geteuid():
            raise _invalid(root, f"the folder belongs to user {status.st_uid}, not to you. Name another folder.")
        _check_closed(root, status)


def _last_change(folder: Path) -> float:
    """Return the time of the last change in a folder and in those of its entries; now if it is being removed."""
    try:
        return max(each.lstat().st_mtime for each in (folder, *folder.iterdir(), *folder.glob("*/*")))
    except FileNotFoundError:
        return time.time()


class NewFile(io.RawIOBase):
    """A new file, with its size and CRC32C while it is written; ``close`` waits until it is on the disk."""

    def __init__(self, path: Path) -> None:
        self.info = FileInfo(0, 0)
        self._number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def writable(self) -> bool:
        """Return that the file can be written."""
        return True

    def write(self, content: Any) -> int:
        """Write bytes, or an array of bytes, whole."""
        # CRC32C takes arrays of NumPy without a copy, but no memory views.
        data: Bytes = content if isinstance(content, np.ndarray) else np.frombuffer(content, np.uint8)
        view = data.data
        while view.nbytes:
            view = view[os.write(self._number, view[:_WRITE]) :]
        self.info = FileInfo(self.info.bytes + data.nbytes, google_crc32c.extend(self.info.crc32c, data))
        return int(data.nbytes)

    def close(self) -> None:
        """Wait until the file is on the disk, and close it."""
        if not self.closed:
            try:
                os.fsync(self._number)
            finally:
                os.close(self._number)
                super().close()


def write(path: Path, parts: Iterable[Any], *, sealed: bool = False) -> FileInfo:
    """Write a new file from bytes or arrays of bytes, and wait until it is on the disk."""
    with NewFile(path) as file:
        for part in parts:
            file.write(part)
        info = file.info
        if sealed:
            file.write(info.crc32c.to_bytes(SEAL, "little"))
    return FileInfo(file.info.bytes, info.crc32c, sealed)


def as_bytes(array: npt.NDArray[Any]) -> Bytes:
    """Return the bytes of an array: of the same memory if that is contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def commit(part: Path, keep: int, *, without: Collection[str] | None = None, **manifest: Any) -> Path:
    """Make a written folder the newest version, remove all but the `keep` newest ones, and return its folder.

    Parameters
    ----------
    part
        The folder that `begin` returned, with all files.
    keep
        Number of versions to keep.
    without
        If given, the version also has the names of the newest version that it lacks, apart from these.
    **manifest
        The fields of `Version`, apart from `folder`.
    """
    root = part.parent
    with worded(root, f"write {MANIFEST}"):
        if without is not None:
            _carry_over(part, manifest["entries"], manifest["files"], without)
        content = {"format": _FORMAT, **manifest}
        content["crc32c"] = google_crc32c.value(json.dumps(content).encode())
        write(part / MANIFEST, [json.dumps(content).encode()])
        folders = {folder for path in manifest["files"] for folder in (part / path).parents}
        for folder in sorted(folder for folder in folders if folder.is_relative_to(part)):
            files.sync_folder(folder)
        version = _renamed(part)
        files.sync_folder(root)
    for _, former in _complete(root)[:-keep]:
        gone = root / f".{uuid.uuid4().hex}.part"  # a version is whole, or has another name
        with contextlib.suppress(OSError):
            former.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)
    return version


def _carry_over(part: Path, entries: dict[str, Any], files: dict[str, FileInfo], without: Collection[str]) -> None:
    """Add to a version what the newest version has and this version lacks, as other names of the same files."""
    readable = (version for _, each in reversed(_complete(part.parent)) if (version := _whole(each)))
    if (newest := next(readable, None)) is None:
        return
    for name in newest.entries.keys() - entries.keys() - set(without):
        entries[name] = newest.entries[name]
        for file, info in newest.files_of(name).items():
            source, target = newest.folder / name / file, part / name / file
            for parent in (target.parent.parent, target.parent):
                parent.mkdir(mode=0o700, exist_ok=True)
            try:
                os.link(source, target, follow_symlinks=False)
            except OSError:  # some file systems have no such links
                shutil.copyfile(source, target, follow_symlinks=False)
            files[f"{name}/{file}"] = info


def _whole(folder: Path) -> Version | None:
    try:
        return _read(folder)
    except InvalidRequest:  # a damaged version must not prevent the next one
        return None


def _renamed(part: Path) -> Path:
    """Give a folder the name of the next version: a name that another writer takes meanwhile cannot be replaced."""
    number = max((number for number, _ in _complete(part.parent)), default=0)
    while True:
        number += 1
        version = part.with_name(f"v{number:06}")
        try:
            part.rename(version)
        except OSError:
            if not version.exists():
                raise
        else:
            return version


def discard(part: Path) -> None:
    """Remove the folder of a version that has not been completed."""
    shutil.rmtree(part, ignore_errors=True)


# -- read ----------------------------------------------------------------------------------------------------


def of_name(root: Path) -> Path:
    """Return a folder, or if there is none, the folder in which a cluster of this name has kept values last."""
    if root.is_dir():
        return root
    with worded(root, "read the folder"):
        found = [each for each in (root.parent / KEPT).glob(f"{root.name}-????????") if _complete(each)]
        return max(found, key=lambda each: _complete(each)[-1][1].stat().st_mtime, default=root)


def versions(root: Path) -> tuple[list[Version], list[InvalidRequest]]:
    """Return the complete versions, the oldest first, and why others cannot be read; raise an error as `read` does."""
    found, errors = [], []
    for _, folder in _found(root):
        try:
            found.append(_read(folder))
        except InvalidRequest as error:
            errors.append(error)
    return found, errors


def read(root: Path, number: int | None = None) -> Version:
    """Return a version, by default the newest one.

    Raises
    ------
    CheckpointNotFound
        If the folder has no complete version, or not the one of this number.
    InvalidRequest
        If the manifest is damaged, or others than the owner can change the folder, the version or its manifest.
    """
    found = dict(_found(root))
    if number is not None and number not in found:
        raise CheckpointNotFound(
            f"checkpoint {root} has no version {number}.", option="version", given=number, allowed=map(str, found)
        )
    return _read(found[number or max(found)])


def _found(root: Path) -> list[tuple[int, Path]]:
    """Return numbers and folders of the complete versions, the oldest first; raise an error as `read` does."""
    with worded(root, "read the folder"):
        if root.is_dir():
            _check_closed(root, root.stat())
        found = _complete(root)
    if not found:
        raise CheckpointNotFound(
            f"checkpoint {root} has no complete version on {platform.node()}. Name a folder that checkpoint() has "
            "written, on a file system that all nodes share.",
        )
    return found


def _complete(root: Path) -> list[tuple[int, Path]]:
    """Return numbers and folders of the versions, the oldest first."""
    folders = root.iterdir() if root.is_dir() else ()
    named = [folder for folder in folders if _VERSION.fullmatch(folder.name)]
    # A folder of another program may have such a name.
    return sorted((int(folder.name[1:]), folder) for folder in named if os.path.lexists(folder / MANIFEST))


def _read(folder: Path) -> Version:
    text = read_file(folder, MANIFEST)
    try:
        content = json.loads(text)
        crc = content.pop("crc32c")
        whole = crc == google_crc32c.value(json.dumps(content).encode()) and content.pop("format") == _FORMAT
        content["files"] = {name: FileInfo(*info) for name, info in content["files"].items()}
        version = Version(folder, **content)
        whole = whole and all(map(is_name, version.entries)) and all(map(_is_path, version.files))
        whole = whole and isinstance(version.created, float) and isinstance(version.cluster, str)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        whole = False
    if not whole:
        raise damaged(folder, MANIFEST)
    return version


def is_name(name: Any) -> bool:
    """Return whether a name is that of a variable, and so that of a folder too."""
    return isinstance(name, str) and name.isidentifier()


def _is_path(path: str) -> bool:
    name, *inner = path.split("/")
    return is_name(name) and len(inner) > 0 and all(re.fullmatch(r"\w[\w.]*", each) for each in inner)


@contextlib.contextmanager
def opened(folder: Path, path: str, nbytes: int | None = None) -> Iterator[int]:
    """Open a file of a version; no folder or file below that of the checkpoint may be a link.

    Raises
    ------
    InvalidRequest
        If the file is missing, a link or not a file, or its size is not `nbytes`.
    """
    *folders, name = path.split("/")
    number = -1
    try:
        number = os.open(folder, _READ | os.O_DIRECTORY)
        for inner, flags in (*((each, _READ | os.O_DIRECTORY) for each in folders), (name, _READ)):
            outer, number = number, -1
            try:
                _check_closed(folder.parent, os.fstat(outer))
                number = os.open(inner, flags, dir_fd=outer)
            finally:
                os.close(outer)
        status = os.fstat(number)
        if not stat.S_ISREG(status.st_mode) or nbytes not in {None, status.st_size}:
            raise damaged(folder, path)
        if _is_open(status):
            remedy = f"Close the file with: chmod go-w '{folder / path}'"
            raise _unusable(folder, path, f"can be changed by others than its owner. {remedy}")
        yield number
    except OSError as error:
        reason = f"cannot be read on {platform.node()} ({error.strerror}). Restore another version."
        raise _unusable(folder, path, reason) from error
    finally:
        if number != -1:
            os.close(number)


def read_file(folder: Path, path: str, expected: FileInfo | None = None) -> bytes:
    """Return the content of a file of a version; raise InvalidRequest as `opened`, or if its CRC32C has changed."""
    with (
        opened(folder, path, None if expected is None else expected.bytes) as number,
        open(number, "rb", closefd=False) as file,
    ):
        content = file.read()
    if expected is not None and google_crc32c.value(content) != expected.crc32c:
        raise damaged(folder, path)
    return content


def read_sealed(folder: Path, path: str, target: Bytes) -> None:
    """Read a sealed file into an array of bytes; raise InvalidRequest as `opened`, or if its content has changed."""
    seal = np.empty(SEAL, np.uint8)
    with opened(folder, path, target.nbytes + SEAL) as number:
        crc = _read_into(number, target, 0, 0)
        _read_into(number, seal, target.nbytes, 0)
    if int.from_bytes(seal.tobytes(), "little") != crc:
        raise damaged(folder, path)


def _read_into(number: int, target: Bytes, offset: int, crc: int) -> int:
    """Read bytes of an open file into an array, and return their CRC32C, which continues `crc`."""
    view = target.data
    while view.nbytes and (done := os.preadv(number, [view[:_WRITE]], offset)):
        view, offset = view[done:], offset + done
    return int(google_crc32c.extend(crc, target))


def damages(version: Version) -> list[InvalidRequest]:
    """Read all files of a version, and return why some of them are not as they were written."""
    found, buffer = [], np.empty(_WRITE, np.uint8)
    for path, expected in version.files.items():
        content, crc = expected.bytes - SEAL * expected.sealed, 0
        seal = np.frombuffer(expected.crc32c.to_bytes(SEAL, "little"), np.uint8)[: SEAL * expected.sealed]
        try:
            with opened(version.folder, path, expected.bytes) as number:
                for offset in range(0, content, len(buffer)):
                    crc = _read_into(number, buffer[: content - offset], offset, crc)
                if crc != expected.crc32c or os.pread(number, SEAL, content) != seal.tobytes():
                    raise damaged(version.folder, path)
        except InvalidRequest as error:
            found.append(error)
    return found


# -- errors --------------------------------------------------------------------------------------------------


def _is_open(status: os.stat_result) -> bool:
    """Return whether others than the owner can change a file or a folder."""
    return bool(stat.S_IMODE(status.st_mode) & 0o022)


def _check_closed(root: Path, status: os.stat_result) -> None:
    if _is_open(status):
        raise _invalid(
            root,
            f"others than the owner can change the folder (mode {stat.S_IMODE(status.st_mode):o}). Close the folder "
            f"with: chmod go-w '{root}'",
        )


def damaged(folder: Path, path: str) -> InvalidRequest:
    """Return the error for a file of a version whose content is not that of the save."""
    return _unusable(
        folder,
        path,
        "has changed since the file was written, or another release of the workbench has written it. Restore another "
        "version.",
    )


def _unusable(folder: Path, path: str, reason: str) -> InvalidRequest:
    file = f"{folder.name}/{path}"
    return InvalidRequest(f"checkpoint {folder.parent}: {file} {reason}", option="file", given=file)


def _invalid(root: Path, message: str) -> InvalidRequest:
    return InvalidRequest(f"checkpoint {root}: {message}", option="path", given=str(root))


@contextlib.contextmanager
def worded(root: Path, action: str) -> Iterator[None]:
    """Raise an error of the file system as InvalidRequest, with the host and the `action` that has failed."""
    try:
        yield
    except OSError as error:
        raise _invalid(
            root,
            f"{platform.node()} cannot {action} ({error.strerror or error}); former versions are unchanged. Name a "
            "folder with free space whose parent exists, on a file system that all nodes share.",
        ) from error
