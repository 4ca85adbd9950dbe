"""A part in a fit with a journal: the checksum of its data, and the files of its state."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import google_crc32c
import numpy as np
from scipy import sparse

from workbench.checkpoint import folder
from workbench.checkpoint.folder import FileInfo, as_bytes
from workbench.errors import InvalidRequest
from workbench.ml.engine.records import REMEDY, refused

if TYPE_CHECKING:
    from numpy.typing import NDArray

Arrays = dict[str, Any]
"""Arrays and numbers by name; None: there is none."""

# Bytes of a slice of rows, and number of texts, which are copied for the checksum if the memory has another format.
_SLICE, _TEXTS = 16 << 20, 10_000
# Kinds of arrays whose bytes depend on the block or on the process.
_TEXT = "OUS"
# The kinds of arrays in the file of a state.
_ROWS, _VALUES = "rows.", "values."
# The polynomial of CRC32C. Bit 31 is the coefficient of 1, bit 30 of x.
_POLYNOMIAL, _ONE, _BYTE = 0x82F63B78, 1 << 31, 1 << 23


class HasState(Protocol):
    """A part that changes during a fit. Parts without these methods have the same answers at any time."""

    def state(self) -> tuple[Arrays, Arrays]:
        """Return what changes during a fit: arrays with a row for each row of the block, and other values."""

    def restore(self, rows: Arrays, values: Arrays, *, same: bool) -> None:
        """Continue from a result of `state`.

        Parameters
        ----------
        rows
            The arrays with the rows of this block.
        values
            The other values, of a block with some of these rows; none for a block without rows.
        same
            Whether the values are those of this block; False if the rows were divided in another way.
        """


class Column(NamedTuple):
    """The checksum of rows, targets or weights, which does not depend on the division into blocks."""

    rows: int
    kind: str
    """Dtype and shape of a row."""
    crc: int
    nbytes: int

    def joined(self, other: Column) -> Column:
        """Return the checksum of these rows and the rows of the next block."""
        if not (self.rows and other.rows):
            return self if self.rows else other
        crc = crc_joined(self.crc, other.crc, other.nbytes)
        return Column(self.rows + other.rows, self.kind, crc, self.nbytes + other.nbytes)


class StateFile(NamedTuple):
    """The file of the state of a block, whose name is the number of the first row."""

    start: int
    rows: int
    bytes: int
    crc32c: int


class JournaledPart:
    """A part with what a journal needs; other methods are those of the part.

    Parameters
    ----------
    part
        The part.
    columns
        Rows, targets and weights, or None.
    start
        Number of the first row in all data.
    """

    def __init__(self, part: Any, columns: Sequence[Any], start: int) -> None:
        self._part, self._start = part, start
        self._columns = dict(zip(("X", "y", "sample_weight"), columns, strict=True))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)

    def described(self) -> tuple[bool, dict[str, Column]]:
        """Return whether the part has a state, and the checksums of its data."""
        given = (_streams(name, column) for name, column in self._columns.items() if column is not None)
        return hasattr(self._part, "state"), {name: _column(each) for some in given for name, each in some.items()}

    def save_state(self, path: str) -> StateFile | None:
        """Write the state into a folder; a block without rows has none."""
        if not (size := self._columns["X"].shape[0]):
            return None
        given = dict(zip((_ROWS, _VALUES), self._part.state(), strict=True))
        named = {kind + name: value for kind, some in given.items() for name, value in some.items()}
        state = Path(path)
        with (
            folder.worded(state.parent, "write the state of a fit"),
            folder.NewFile(state / f"{self._start}.npz") as file,
        ):
            np.savez(file, **{name: value for name, value in named.items() if value is not None})
        return StateFile(self._start, size, *file.info[:2])

    def load_state(self, path: str, files: list[StateFile]) -> None:
        """Continue from the state in a folder, whose blocks may have other rows.

        Raises
        ------
        InvalidRequest
            If a file was changed.
        """
        start, size = self._start, self._columns["X"].shape[0]
        if not size:
            self._part.restore({}, {}, same=False)
            return
        needed = [file for file in files if file.start < start + size and file.start + file.rows > start]
        found = [_read(Path(path), file) for file in needed]
        own = [slice(max(start - file.start, 0), start + size - file.start) for file in needed]
        rows = {
            name: np.concatenate([each[_ROWS + name][part] for each, part in zip(found, own, strict=True)])
            for name in _names(found[0], _ROWS)
        }
        values = {name: found[0][_VALUES + name][()] for name in _names(found[0], _VALUES)}
        self._part.restore(rows, values, same=[file[:2] for file in needed] == [(start, size)])


class PartMaker:
    """Makes parts with a journal; see `workbench.ml.engine.mpi_parts.Task.part`."""

    def __init__(self, part: Callable[..., Any]) -> None:
        self._part = part
        self.takes_tensors = getattr(part, "takes_tensors", False)
        self.finds_non_finite = getattr(part, "finds_non_finite", False)

    def __call__(self, X: Any, y: Any, weight: Any, start: int) -> JournaledPart:
        """Return the part of a block."""
        return JournaledPart(self._part(X, y, weight, start), (X, y, weight), start)


def _names(found: Arrays, kind: str) -> list[str]:
    return [name.removeprefix(kind) for name in found if name.startswith(kind)]


def _read(state: Path, file: StateFile) -> dict[str, NDArray[Any]]:
    try:
        content = folder.read_file(state, f"{file.start}.npz", FileInfo(file.bytes, file.crc32c))
    except InvalidRequest as error:
        raise refused(
            state.parent, f"{error.given} is missing or has changed since it was written. {REMEDY}"
        ) from error
    with np.load(io.BytesIO(content), allow_pickle=False) as found:
        return {name: found[name] for name in found.files}


def _streams(name: str, column: Any) -> dict[str, Any]:
    """Return the arrays of rows, targets or weights by their names, each in the order of the rows."""
    if not sparse.issparse(column):
        return {name: column}
    lengths = np.diff(column.indptr).astype(np.int64, copy=False)
    return {name: column.data, f"columns of {name}": column.indices, f"lengths of {name}": lengths}


def _column(column: Any) -> Column:
    crc = nbytes = 0
    for content in _contents(column):
        crc, nbytes = google_crc32c.extend(crc, content), nbytes + content.nbytes
    kind = "text" if column.dtype.kind in _TEXT else str(column.dtype)
    return Column(column.shape[0], "x".join(["", *map(str, column.shape[1:])]) + f" {kind}", crc, nbytes)


def _contents(column: Any) -> Iterator[NDArray[np.uint8]]:
    """Yield the bytes of an array; those of a text do not depend on the longest text of the block."""
    is_text = column.dtype.kind in _TEXT
    width = column.dtype.itemsize * int(np.prod(column.shape[1:], dtype=int))
    at_once = _TEXTS if is_text else max(_SLICE // max(width, 1), 1)
    for start in range(0, column.shape[0], at_once):
        some = column[start : start + at_once]
        if is_text:
            yield np.frombuffer("".join(f"{each!r}\0" for each in some.ravel().tolist()).encode(), np.uint8)
        else:
            yield as_bytes(some)


def crc_joined(first: int, second: int, nbytes: int) -> int:
    """Return the CRC32C of two contents together, from the CRC32C of each and the number of bytes of the second.

    Notes
    -----
    The first remainder is multiplied by x to the power of the number of bits of the second content.
    """
    power, square = _ONE, _BYTE
    while nbytes:
        if nbytes & 1:
            power = _product(power, square)
        square, nbytes = _product(square, square), nbytes >> 1
    return _product(first, power) ^ second


def _product(left: int, right: int) -> int:
    """Return the product of two polynomials over GF(2), modulo that of CRC32C."""
    product = 0
    for bit in range(31, -1, -1):
        if left >> bit & 1:
            product ^= right
        right = right >> 1 ^ (_POLYNOMIAL if right & 1 else 0)
    return product
