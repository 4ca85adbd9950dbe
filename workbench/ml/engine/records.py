"""A file of records: numbers, arrays and texts, each record with its length and checksum; never a pickle.

A process that ends while it writes leaves a part of the last record, which a reader passes over.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import google_crc32c
import numpy as np

from workbench.checkpoint.folder import as_bytes
from workbench.errors import InvalidRequest

if TYPE_CHECKING:
    from numpy.typing import NDArray

# The start of each file.
_MAGIC = b"journal\n"
# Bytes and CRC32C of a record, and the bytes of the JSON at its start.
_LENGTHS, _TEXT = struct.Struct("<QI"), struct.Struct("<I")


def encode(name: str, value: Any) -> list[NDArray[np.uint8]]:
    """Return the bytes of a record in pieces: JSON with the shape of the value, and the numbers of its arrays.

    Parameters
    ----------
    name
        Name of the record.
    value
        None, boolean, number, text, array of NumPy, or a list, tuple or mapping of these.

    Raises
    ------
    TypeError
        If a part of the value is of another kind.
    """
    arrays: list[NDArray[Any]] = []
    text = json.dumps([name, _tree(value, arrays)]).encode()
    start = np.frombuffer(_TEXT.pack(len(text)) + text, np.uint8)
    return [start, *map(as_bytes, arrays)]


def _tree(value: Any, arrays: list[NDArray[Any]]) -> Any:
    """Return a value as JSON, and append its arrays; what JSON does not have is an object with one name, its kind."""
    tree: Any
    if isinstance(value, np.generic | np.ndarray):
        if value.dtype.hasobject:
            tree = {"objects": [value.shape, [_tree(each, arrays) for each in value.ravel().tolist()]]}
        elif np.dtype(value.dtype.str) != value.dtype:
            raise TypeError(f"a journal cannot keep an array of {value.dtype}")
        else:
            array = np.asarray(value)
            # Rounding may depend on the order of the numbers in the memory.
            by_columns = array.flags.f_contiguous and not array.flags.c_contiguous
            arrays.append(array.T if by_columns else array)
            kind = "scalar" if isinstance(value, np.generic) else "columns" if by_columns else "array"
            tree = {kind: [value.dtype.str, arrays[-1].shape]}
    elif value is None or isinstance(value, bool | int | str):
        tree = value
    elif isinstance(value, float):
        tree = {"float": value.hex()}
    elif isinstance(value, list):
        tree = [_tree(each, arrays) for each in value]
    elif isinstance(value, tuple):
        tree = {"tuple": [_tree(each, arrays) for each in value]}
    elif isinstance(value, Mapping):
        tree = {"pairs": [[_tree(each, arrays) for each in pair] for pair in value.items()]}
    else:
        raise TypeError(f"a journal cannot keep {type(value).__name__}")
    return tree


def decode(content: bytes) -> tuple[str, Any]:
    """Return name and value of a record."""
    name, tree, start = _text(content)
    return name, _value(tree, _Numbers(content, start))


def _text(content: bytes) -> tuple[str, Any, int]:
    """Return the name of a record, its value as JSON, and the place of its numbers."""
    (length,) = _TEXT.unpack_from(content)
    name, tree = json.loads(content[_TEXT.size : _TEXT.size + length])
    return name, tree, _TEXT.size + length


class _Numbers:
    """The numbers of a record, which are read one array after another."""

    def __init__(self, content: bytes, start: int) -> None:
        self._content, self._start = content, start

    def read(self, dtype: str, shape: list[int]) -> NDArray[Any]:
        """Return the next array."""
        count = int(np.prod(shape, dtype=int))
        array = np.frombuffer(self._content, dtype, count, self._start).reshape(shape)
        self._start += array.nbytes
        return array.copy()


def _value(tree: Any, numbers: _Numbers) -> Any:
    """Return the inverse of `_tree`."""
    if isinstance(tree, list):
        return [_value(each, numbers) for each in tree]
    if not isinstance(tree, dict):
        return tree
    [(kind, inner)] = tree.items()
    value: Any
    if kind == "array":
        value = numbers.read(*inner)
    elif kind == "columns":
        value = numbers.read(*inner).T
    elif kind == "scalar":
        value = numbers.read(*inner)[()]
    elif kind == "float":
        value = float.fromhex(inner)
    elif kind == "tuple":
        value = tuple(_value(each, numbers) for each in inner)
    elif kind == "pairs":
        value = {_value(key, numbers): _value(each, numbers) for key, each in inner}
    else:
        shape, items = inner
        value = np.empty(len(items), object)
        value[:] = [_value(each, numbers) for each in items]
        value = value.reshape(shape)
    return value


class Record(NamedTuple):
    """A record in its file."""

    name: str
    start: int
    """Place of the record behind its lengths."""
    end: int


class RecordFile:
    """A file of records, which one process at a time uses.

    Parameters
    ----------
    path
        The file, which is created if it is missing.

    Raises
    ------
    InvalidRequest
        If another process uses the file, others than the user can change the file, or its first record was changed.
    OSError
        If the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
        self._file = open(number, "r+b")  # noqa: SIM115  (closed by `close`)
        try:
            self._check(path)
            self.records = list(self._found(path))
        except BaseException:
            self.close()
            raise

    def _check(self, path: Path) -> None:
        status = os.fstat(self._file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise refused(path.parent, f"others than you can change {path.name}. Name another folder.")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            # Some file systems have no locks.
            if error.errno in {errno.EAGAIN, errno.EACCES}:
                message = "another fit uses the folder. Wait for its end, or name another folder."
                raise refused(path.parent, message) from error

    def _found(self, path: Path) -> Iterator[Record]:
        """Yield the records up to the first one that is not whole."""
        size, end = os.fstat(self._file.fileno()).st_size, len(_MAGIC)
        if not _MAGIC.startswith(self._file.read(len(_MAGIC))):
            raise refused(path.parent, f"{path.name} is a file of another program. Name another folder.")
        while end + _LENGTHS.size <= size:
            self._file.seek(end)
            length, crc = _LENGTHS.unpack(self._file.read(_LENGTHS.size))
            start, end = end + _LENGTHS.size, end + _LENGTHS.size + length
            if end > size:
                return
            content = self._file.read(length)
            if google_crc32c.value(content) != crc:
                if start == len(_MAGIC) + _LENGTHS.size:
                    raise refused(path.parent, f"{path.name} has changed since it was written. {REMEDY}")
                return
            yield Record(_text(content)[0], start, end)

    def read(self, record: Record) -> Any:
        """Return the value of a record."""
        self._file.seek(record.start)
        return decode(self._file.read(record.end - record.start))[1]

    def keep(self, records: list[Record]) -> None:
        """Remove all but these first records."""
        self.records = records
        self._file.truncate(records[-1].end if records else 0)
        if not records:
            self._file.seek(0)
            self._file.write(_MAGIC)

    def append(self, name: str, value: Any) -> None:
        """Append a record; the end of the process does not harm the record, and `sync` waits for the disk."""
        pieces, crc = encode(name, value), 0
        for piece in pieces:
            crc = google_crc32c.extend(crc, piece)
        self._file.seek(0, os.SEEK_END)
        self._file.write(_LENGTHS.pack(sum(piece.nbytes for piece in pieces), crc))
        for piece in pieces:
            self._file.write(piece.data)
        self._file.flush()

    def sync(self) -> None:
        """Wait until the file is on the disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file, without an error for a record that could not be written."""
        with contextlib.suppress(OSError):
            self._file.close()


REMEDY = "Remove the folder to fit from the beginning, or name another folder."


def refused(root: Path, message: str) -> InvalidRequest:
    """Return the error for a folder that a fit cannot use."""
    return InvalidRequest(f"checkpoint {root}: {message}", option="checkpoint", given=str(root))
