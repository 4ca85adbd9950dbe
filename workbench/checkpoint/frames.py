"""Dataframes and series as Parquet, one file for each rank, whose pages have checksums.

``types.arrow`` has the columns and their types without rows: a column of a Parquet file may lack some categories.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench.checkpoint import folder as versions
from workbench.checkpoint.folder import FileInfo
from workbench.errors import InvalidRequest
from workbench.placement import schema
from workbench.placement.rows import Cut

TYPES = "types.arrow"
_UNNAMED = "values"
# Rows of a group, which is read whole.
_GROUP = 1 << 18


def write(comm: Any, frame: Any, part: str, name: str) -> tuple[dict[str, Any], dict[str, FileInfo]]:
    """Write a pandas dataframe or series, of which each rank has some rows; collective.

    Parameters
    ----------
    comm, part, name
        See `workbench.checkpoint.arrays.write`.
    frame
        The rows of this rank.

    Returns
    -------
    tuple of dict
        The entry of the manifest, and the files of this rank, as from `workbench.checkpoint.arrays.write`.

    Raises
    ------
    InvalidRequest
        If a file cannot be written, or Parquet has no type for a column.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    root, is_series = Path(part), frame.ndim == 1
    entry: dict[str, Any] = {"kind": "series" if is_series else "frame", "group": _GROUP}
    entry["named"] = not is_series or frame.name is not None
    if is_series:
        frame = frame.to_frame(_UNNAMED if frame.name is None else frame.name)
    table, types = _tables(name, frame)
    path, written = f"{name}/{comm.rank:05}.parquet", {}
    with versions.worded(root.parent, f"write {name}"):
        if comm.rank == 0:
            (root / name).mkdir(mode=0o700)
            file = versions.NewFile(root / name / TYPES)
            with file, pa.ipc.new_stream(file, types.schema) as stream:
                stream.write_batch(types)
            written[f"{name}/{TYPES}"] = file.info
        comm.bcast(None)  # the folder exists
        with versions.NewFile(root / path) as file:
            pq.write_table(table, file, compression="lz4", row_group_size=_GROUP, write_page_checksum=True)
        written[path] = file.info
    return {**entry, "rows": comm.allgather(len(frame))}, written


def _tables(name: str, frame: Any) -> tuple[Any, Any]:
    """Return a dataframe as a table of Arrow, and its types; raise InvalidRequest if these would change."""
    import pyarrow as pa

    reason = "the labels of columns are of several types"
    if len(set(map(type, frame.columns))) == 1:
        try:
            table = pa.Table.from_pandas(frame, preserve_index=True)
            types = pa.RecordBatch.from_pandas(frame.iloc[:0], schema=table.schema, preserve_index=True)
        except (pa.ArrowException, TypeError, ValueError) as error:
            reason = str(error)
        else:
            if schema.types_of(types.to_pandas()).is_same(schema.types_of(frame)):
                return table, types
            reason = f"the types {', '.join(map(str, frame.dtypes))} would change"
    raise InvalidRequest(
        f"checkpoint: Parquet does not keep the columns of {name} as they are: {reason}. Convert values or labels to "
        "one type first, for example with astype(str).",
        option=name,
    )


def read_types(folder: Path, name: str, entry: Mapping[str, Any], expected: FileInfo | None = None) -> Any:
    """Return a dataframe or series without rows; raise InvalidRequest as `read`."""
    import pyarrow as pa

    content = versions.read_file(folder, f"{name}/{TYPES}", expected)
    try:
        with pa.ipc.open_stream(content) as stream:
            frame = stream.read_pandas()
    except (pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise versions.damaged(folder, f"{name}/{TYPES}") from error
    return _column(frame, entry) if entry["kind"] == "series" else frame


def _column(frame: Any, entry: Mapping[str, Any]) -> Any:
    column = frame.iloc[:, 0]
    return column if entry["named"] else column.rename(None)


def read(folder: str, name: str, entry: Mapping[str, Any], cuts: Sequence[Cut]) -> Any:
    """Return rows of a written dataframe or series.

    Parameters
    ----------
    folder, name, entry
        See `workbench.checkpoint.arrays.read`.
    cuts
        The rows, as parts of the files.

    Raises
    ------
    InvalidRequest
        If a file is missing or has changed.
    """
    import pyarrow as pa

    types = read_types(Path(folder), name, entry)
    if not cuts:
        return types
    tables = [_read_file(Path(folder), f"{name}/{cut.chunk:05}.parquet", entry["group"], cut) for cut in cuts]
    frame = pa.concat_tables(tables).to_pandas()
    return schema.conform(_column(frame, entry) if entry["kind"] == "series" else frame, schema.types_of(types))


def _read_file(folder: Path, path: str, group: int, cut: Cut) -> Any:
    """Return some rows of a file as a table of Arrow."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    first = cut.start // group
    with versions.opened(folder, path) as number, open(number, "rb", closefd=False) as content:
        try:
            file = pq.ParquetFile(content, page_checksum_verification=True)
            table = file.read_row_groups(range(first, -(-cut.stop // group)))
            rows = table.slice(cut.start - first * group, cut.stop - cut.start)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise versions.damaged(folder, path) from error
    if len(rows) != cut.stop - cut.start:
        raise versions.damaged(folder, path)
    return rows
