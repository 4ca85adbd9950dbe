"""Arrays in the format of Zarr v3, written by all ranks at the same time from the memory of their blocks.

A chunk file has the bytes of some rows and their CRC32C, as the codecs ``bytes`` and ``crc32c`` of Zarr write them.
All chunks have the same number of rows, so rows at the ends of a block move to the rank that writes their chunk. A
matrix in CSR format has a folder with three arrays: ``data``, ``indices``, and ``ends``, the end of each row in these.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from workbench.checkpoint import folder as versions
from workbench.checkpoint.folder import SEAL, FileInfo, as_bytes
from workbench.gpu.tensors import on_host
from workbench.placement.in_use import Array, empty_aligned

# Bytes of a chunk file, at most: large for parallel file systems, small beside the memory of a rank.
CHUNK = 64 << 20
_TIMES = {"M": "numpy.datetime64", "m": "numpy.timedelta64"}
_TEXTS = {"U": "fixed_length_utf32", "S": "null_terminated_bytes"}


def zarr_type(dtype: np.dtype[Any]) -> tuple[Any, Any] | None:
    """Return the data type and the fill value of Zarr v3 for a dtype; None if Zarr has no data type."""
    if dtype.kind in "biuf" and dtype.itemsize <= 8:
        return dtype.name, False if dtype.kind == "b" else 0
    if dtype.kind == "c" and dtype.itemsize <= 16:
        return dtype.name, [0, 0]
    if dtype.kind in _TIMES:
        unit, count = np.datetime_data(dtype)
        if unit == "generic":
            return None
        return {"name": _TIMES[dtype.kind], "configuration": {"unit": unit, "scale_factor": count}}, 0
    if dtype.kind in _TEXTS and dtype.itemsize:
        return {"name": _TEXTS[dtype.kind], "configuration": {"length_bytes": dtype.itemsize}}, ""
    return None


def _metadata(shape: Sequence[int], dtype: np.dtype[Any], height: int) -> bytes:
    """Return the ``zarr.json`` of an array."""
    data_type, fill_value = zarr_type(dtype) or (None, None)
    return json.dumps(
        {
            "zarr_format": 3,
            "node_type": "array",
            "shape": shape,
            "data_type": data_type,
            "chunk_grid": {
                "name": "regular",
                "configuration": {"chunk_shape": [height, *(max(1, length) for length in shape[1:])]},
            },
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
            "fill_value": fill_value,
            "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
        }
    ).encode()


# -- write, on all ranks -----------------------------------------------------------------------------------------


def write(comm: Any, block: Any, part: str, name: str) -> tuple[dict[str, Any], dict[str, FileInfo]]:
    """Write an array or a CSR matrix, of which each rank has some rows; collective.

    Parameters
    ----------
    comm
        The ranks with the blocks, in their order.
    block
        Array, tensor of any device, or CSR matrix, of shape (rows of this rank, ...).
    part
        Folder of the version.
    name
        Name of a new folder in it.

    Returns
    -------
    dict
        The entry of the manifest, the same on all ranks.
    dict
        The files that this rank has written, by their paths in `part`.

    Raises
    ------
    InvalidRequest
        If a file cannot be written.
    """
    if not hasattr(block, "indptr"):
        entry, written = _write_rows(comm, block, Path(part), name)
        return {"kind": "array", **entry}, written
    if comm.rank == 0:
        with versions.worded(Path(part).parent, f"write {name}"):
            Path(part, name).mkdir(mode=0o700)
    before = comm.exscan(int(block.nnz)) or 0
    columns = {
        "data": block.data,
        "indices": block.indices.astype(np.int32 if block.shape[1] <= np.iinfo(np.int32).max else np.int64, copy=False),
        "ends": block.indptr[1:].astype(np.int64) + before,
    }
    arrays, written = {}, {}
    for column, rows in columns.items():
        arrays[column], files = _write_rows(comm, rows, Path(part), f"{name}/{column}")
        written |= files
    shape = [*arrays["ends"]["shape"], block.shape[1]]
    return {"kind": "matrix", "shape": shape, "class": type(block).__name__, "arrays": arrays}, written


def _write_rows(comm: Any, block: Any, part: Path, name: str) -> tuple[dict[str, Any], dict[str, FileInfo]]:
    lengths: list[int] = comm.allgather(len(block))
    rows, row = sum(lengths), on_host(block[:0])
    row_bytes = row.dtype.itemsize * math.prod(row.shape[1:])
    # Each rank writes the same number of whole chunks.
    of_rank = math.ceil(rows / comm.size)
    chunks = max(1, math.ceil(of_rank * row_bytes / CHUNK))
    height = max(1, math.ceil(of_rank / chunks))
    shape, written = [rows, *row.shape[1:]], {}
    with versions.worded(part.parent, f"write {name}"):
        if comm.rank == 0:
            (part / name).mkdir(mode=0o700)
            path = f"{name}/zarr.json"
            written[path] = versions.write(part / path, [_metadata(shape, row.dtype, height)])
        comm.bcast(None)  # the folder exists
        starts = [min(rows, rank * chunks * height) for rank in range(comm.size + 1)]
        pieces = _moved(comm, block, [0, *itertools.accumulate(lengths)], starts)
        for start in range(starts[comm.rank], starts[comm.rank + 1], height):
            path = f"{name}/{_chunk(start // height, row.ndim)}"
            content = [as_bytes(on_host(each)) for each in _between(pieces, start, start + height)]
            # The last chunk is as long as the others.
            content.append(np.zeros(height * row_bytes - sum(each.nbytes for each in content), np.uint8))
            written[path] = versions.write(part / path, content, sealed=True)
    return {"shape": shape, "dtype": row.dtype.str, "height": height}, written


def _chunk(number: int, axes: int) -> str:
    """Return the name of a chunk file."""
    return ".".join(["c", str(number), *["0"] * (axes - 1)])


def _moved(comm: Any, block: Any, held: Sequence[int], wanted: Sequence[int]) -> list[tuple[int, Any]]:
    """Return the rows that this rank writes, each piece with its first row: views of the block, or copies.

    Rank i has the rows from ``held[i]`` to ``held[i + 1]``, and writes those from ``wanted[i]`` to ``wanted[i + 1]``.
    """
    row, own = on_host(block[:0]), held[comm.rank]

    def rows_of(owner: int, writer: int) -> range:
        return range(max(held[owner], wanted[writer]), min(held[owner + 1], wanted[writer + 1]))

    def messages(rows: Any) -> list[Array]:
        content = as_bytes(rows)
        # A message of MPI has less than 2 GiB.
        return [content[start : start + CHUNK] for start in range(0, content.nbytes, CHUNK)]

    requests: list[Any] = []
    pieces = []
    for rank in range(comm.size):
        if rank != comm.rank and (rows := rows_of(comm.rank, rank)):
            sent = messages(on_host(block[rows.start - own : rows.stop - own]))
            requests.extend(comm.Isend(content, rank) for content in sent)
    for rank in range(comm.size):
        if rows := rows_of(rank, comm.rank):
            if rank == comm.rank:
                piece = block[rows.start - own : rows.stop - own]
            else:
                piece = np.empty((len(rows), *row.shape[1:]), row.dtype)
                requests.extend(comm.Irecv(content, rank) for content in messages(piece))
            pieces.append((rows.start, piece))
    for request in requests:
        request.Wait()
    return pieces


def _between(pieces: Iterable[tuple[int, Any]], start: int, stop: int) -> Iterator[Any]:
    """Yield the parts of pieces that are between two rows."""
    for first, rows in pieces:
        if (part := rows[max(0, start - first) : max(0, stop - first)]).shape[0]:
            yield part


# -- read, in a task ---------------------------------------------------------------------------------------------


def check(name: str, entry: Mapping[str, Any], files: Mapping[str, FileInfo]) -> None:
    """Raise an error if an entry is not one that `write` returns, or its files have not the sizes of its rows."""
    if entry["kind"] == "matrix":
        for column, each in entry["arrays"].items():
            check(f"{name}/{column}", {"kind": "array", **each}, files)
        return
    shape, height, dtype = entry["shape"], entry["height"], _dtype(entry)
    if height < 1 or not shape or any(type(length) is not int or length < 0 for length in shape):
        raise ValueError(f"shape {shape}")
    nbytes = height * dtype.itemsize * math.prod(shape[1:])
    if any(
        files[f"{name}/{_chunk(number, len(shape))}"][0] != nbytes + SEAL for number in range(_count(shape[0], height))
    ):
        raise ValueError(f"files of {name}")


def _count(rows: int, height: int) -> int:
    """Return the number of chunks."""
    return -(-rows // height)


def empty(entry: Mapping[str, Any]) -> Any:
    """Return a written array or matrix without rows."""
    if entry["kind"] == "array":
        return np.empty((0, *entry["shape"][1:]), _dtype(entry))
    return _matrix_class(entry)((0, entry["shape"][1]), dtype=_dtype(entry["arrays"]["data"]))


def _dtype(entry: Mapping[str, Any]) -> np.dtype[Any]:
    dtype: np.dtype[Any] = np.dtype(entry["dtype"])
    if zarr_type(dtype) is None:  # for example one of Python's objects
        raise ValueError(f"dtype {dtype}")
    return dtype


def _matrix_class(entry: Mapping[str, Any]) -> Any:
    from scipy import sparse

    return sparse.csr_array if entry["class"] == "csr_array" else sparse.csr_matrix


def read(folder: str, name: str, entry: Mapping[str, Any], start: int, stop: int) -> Any:
    """Return the rows ``start:stop`` of a written array or matrix.

    Parameters
    ----------
    folder
        Folder of the version.
    name
        Name of the folder in it.
    entry
        The entry of the manifest.

    Raises
    ------
    InvalidRequest
        If a file is missing or has changed.
    """
    if entry["kind"] == "array":
        return _read_rows(folder, name, entry, start, stop)
    arrays = entry["arrays"]
    ends = _read_rows(folder, f"{name}/ends", arrays["ends"], max(0, start - 1), stop)
    ends = ends if start else np.concatenate([[0], ends])
    data, indices = (
        _read_rows(folder, f"{name}/{column}", arrays[column], int(ends[0]), int(ends[-1]))
        for column in ("data", "indices")
    )
    ends -= ends[0]
    if max(ends[-1], entry["shape"][1]) <= np.iinfo(np.int32).max:  # of the whole matrix there may be more
        ends, indices = ends.astype(np.int32), indices.astype(np.int32, copy=False)
    try:
        matrix = _matrix_class(entry)((data, indices, ends), shape=(stop - start, entry["shape"][1]))
        matrix.check_format(full_check=True)  # functions in C do not check indices
    except ValueError as error:
        raise versions.damaged(Path(folder), name) from error
    return matrix


def _read_rows(folder: str, name: str, entry: Mapping[str, Any], start: int, stop: int) -> Array:
    dtype, height = _dtype(entry), entry["height"]
    rows = empty_aligned((stop - start, *entry["shape"][1:]), dtype)
    target, row_bytes = as_bytes(rows), dtype.itemsize * math.prod(entry["shape"][1:])
    for number in range(start // height, math.ceil(stop / height)) if stop > start else ():
        path, first = f"{name}/{_chunk(number, rows.ndim)}", number * height
        here = slice(max(start, first), min(stop, first + height))
        into = target[(here.start - start) * row_bytes : (here.stop - start) * row_bytes]
        # The CRC32C is that of the whole chunk.
        whole = here.stop - here.start == height
        chunk = into if whole else np.empty(height * row_bytes, np.uint8)
        versions.read_sealed(Path(folder), path, chunk)
        if not whole:
            into[:] = chunk[(here.start - first) * row_bytes : (here.stop - first) * row_bytes]
    return rows
