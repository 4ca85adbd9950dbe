"""Dataframes and series as Parquet, one file for each rank, whose pages have checksums.

``_types.arrow`` has the columns and their types without rows: a column of a Parquet file may lack some categories.
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

# Readers of a folder of Parquet files ignore names with this beginning.
TYPES = "_types.arrow"
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
    table, types = _tables(comm, name, frame)
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


def _tables(comm: Any, name: str, frame: Any) -> tuple[Any, Any]:
    """Return a dataframe as a table of Arrow, and its types; raise InvalidRequest if values or types would change."""
    import pyarrow as pa

    table, types, reason = None, None, "the labels of columns are of several types"
    if len(set(map(type, frame.columns))) < 2:
        try:
            table = pa.Table.from_pandas(frame, preserve_index=True)
            # Of the table, and not of the dataframe without rows, because these have all categories.
            columns = [
                column.combine_chunks() if column.num_chunks != 1 else column.chunk(0) for column in table.columns
            ]
            types = pa.RecordBatch.from_arrays([column.slice(0, 0) for column in columns], schema=table.schema)
            reason = _difference(frame, types)
        except (pa.ArrowException, AttributeError, KeyError, NotImplementedError, TypeError, ValueError) as error:
            reason = str(error)
    reasons = comm.allgather(reason)
    schemas = set(comm.allgather(None if table is None else table.schema.remove_metadata().serialize().to_pybytes()))
    if not any(reasons) and len(schemas) > 1:
        reasons = ["the types of values differ between ranks"]
    if any(reasons):
        raise InvalidRequest(
            f"checkpoint: Parquet does not keep the columns or the index of {name} as they are: "
            f"{next(filter(None, reasons))}. Convert values or labels to one type first, for example with astype(str).",
            option=name,
        )
    return table, types


def _difference(frame: Any, types: Any) -> str:
    """Return why a dataframe would come back with other values or types; empty if it comes back as it is."""
    import pyarrow as pa

    again, index = types.to_pandas(), frame.index
    if not schema.types_of(again).is_same(schema.types_of(frame)):
        return f"the types {', '.join(map(str, frame.dtypes))} would change"
    of_levels = [each.dtypes.tolist() if each.nlevels > 1 else [each.dtype] for each in (index, again.index)]
    # A process that has not used such an index before reads other values.
    is_extension = any(isinstance(column.type, pa.BaseExtensionType) for column in list(types.schema)[-index.nlevels :])
    if of_levels[0] != of_levels[1] or index.names != again.index.names or is_extension:
        return f"the index, a {type(index).__name__}, would change"
    for column in types.schema:
        # Rows of these would get the keys or the precision of others.
        if pa.types.is_nested(column.type) or pa.types.is_decimal(column.type):
            return f"column {column.name!r} has values of the type {column.type}"
    return ""


def check(name: str, entry: Mapping[str, Any], files: Mapping[str, FileInfo]) -> None:
    """Raise an error if an entry is not one that `write` returns, or a file is missing."""
    if entry["group"] < 1 or any(type(rows) is not int or rows < 0 for rows in entry["rows"]):
        raise ValueError(f"rows {entry['rows']}")
    for file in (TYPES, *(f"{number:05}.parquet" for number in range(len(entry["rows"])))):
        files[f"{name}/{file}"]


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
    paths = [f"{name}/{cut.chunk:05}.parquet" for cut in cuts]
    tables = [_read_file(Path(folder), path, entry["group"], cut) for path, cut in zip(paths, cuts, strict=True)]
    try:
        frame = pa.concat_tables(tables).to_pandas()
        return schema.conform(_column(frame, entry) if entry["kind"] == "series" else frame, schema.types_of(types))
    except Exception as error:  # of any kind, where the footer of a file has changed
        raise versions.damaged(Path(folder), paths[0]) from error


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
