"""One type for each column of the blocks of a dataframe, because ranks exchange their columns as bytes.

`described` and the functions of tasks run where the chunks are, `agree` on the event loop of the client. Dask knows the
types of the first partition only: a column of integers has real numbers in files with missing values, and each file has
the categories that occur there.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from pandas.api.types import (
    infer_dtype,
    is_bool_dtype,
    is_complex_dtype,
    is_datetime64_any_dtype,
    is_numeric_dtype,
    is_object_dtype,
    is_string_dtype,
)

from workbench.errors import PlacementError

if TYPE_CHECKING:
    from distributed import Client, Future

# Bytes of a digest, and of the longest description that is sent whole.
_DIGEST, _SHORT = 16, 2048


@dataclass(frozen=True, eq=False)
class Types:
    """The labels of the columns of a frame or series of pandas, and their types with that of the index at the end."""

    labels: pd.Index
    dtypes: tuple[Any, ...]
    is_series: bool = False

    def is_same(self, other: Types) -> bool:
        """Return whether labels, types and categories are those of another, in the same order."""
        return self.labels.equals(other.labels) and all(map(_same, self.dtypes, other.dtypes))

    def in_order(self, other: Types) -> Types | None:
        """Return the types in the order of the labels of another; None if the labels are others."""
        labels = other.labels
        # Dask does not enforce the name of a series.
        if self.labels.equals(labels) or (self.is_series and other.is_series):
            return Types(labels, self.dtypes, self.is_series)
        if len(labels) != len(self.labels) or not (labels.is_unique and self.labels.is_unique):
            return None
        positions = self.labels.get_indexer(labels)
        return None if -1 in positions else Types(labels, (*(self.dtypes[n] for n in positions), self.dtypes[-1]))


def types_of(value: Any) -> Types:
    """Return the types of a frame or series of pandas."""
    if value.ndim == 1:
        return Types(pd.Index([value.name], dtype=object, tupleize_cols=False), (value.dtype, value.index.dtype), True)
    return Types(value.columns, (*value.dtypes, value.index.dtype))


def described(value: Any) -> bytes:
    """Return the pickled types of a frame or series, or a digest if these are long."""
    packed = pickle.dumps(types_of(value))
    return packed if len(packed) <= _SHORT else hashlib.sha256(packed).digest()[:_DIGEST]


def native(value: Any) -> Any:
    """Return a frame or series in the byte order of the machine, which is the one of MPI."""
    types = types_of(value)
    return conform(value, Types(types.labels, tuple(map(_native, types.dtypes))))


async def agree(
    client: Client,
    name: str,
    chunks: Sequence[Future[Any]],
    descriptions: Sequence[bytes],
    *,
    declared: Any,
    owners: Callable[[Sequence[int]], str],
) -> tuple[Types, bool]:
    """Return the types that all chunks of a collection get, and whether these are the types of each chunk.

    Parameters
    ----------
    client
        Client of the chunks.
    name
        Name of the collection in messages.
    chunks, descriptions
        The chunks, and the result of `described` for each.
    declared
        Frame or series without rows. Its types are taken if no value is lost, else the common type of the chunks.
    owners
        Returns the text of the ranks that get rows of some chunks.

    Raises
    ------
    PlacementError
        If a column has no type for the values of all chunks, or chunks have other columns. An index without such a type
        becomes one of objects, because ranks do not exchange it.
    """
    found = await _found(client, chunks, descriptions)
    wanted = types_of(declared)
    labels = wanted.labels
    ordered = [types.in_order(wanted) for types in found]
    for number, types in enumerate(ordered):
        if types is None:
            raise PlacementError(
                f"{name} has the columns {_listed(labels)}, and the rows of {owners([number])} have the columns "
                f"{_listed(found[number].labels)}. Select the same columns of all partitions first."
            )
    dtypes = [[types.dtypes[position] for types in ordered if types] for position in range(len(wanted.dtypes))]
    agreed = list(map(_without_question, wanted.dtypes, dtypes))
    unsettled = [position for position, dtype in enumerate(agreed) if dtype is None]
    if unsettled:
        columns = {position: (_specific(wanted.dtypes[position]), dtypes[position]) for position in unsettled}
        settled = await _settle(client, chunks, labels, columns)
        for position in unsettled:
            if position not in settled and position < len(labels):
                raise PlacementError(f"the column {labels[position]!r} of {name} {_refusal(dtypes[position], owners)}")
            agreed[position] = settled.get(position, np.dtype(object))
    result = Types(labels, tuple(agreed))
    return result, all(map(result.is_same, found))


def conform(value: Any, types: Types) -> Any:
    """Return a frame or series with other types; columns of the right type are not copied."""
    value = _in_order(value, types.labels)
    if value.ndim == 1:
        value = converted(value, types.dtypes[0])
        if not types_of(value).labels.equals(types.labels):
            value = value.rename(types.labels[0])
    elif changed := [number for number, dtype in enumerate(value.dtypes) if not _same(dtype, types.dtypes[number])]:
        value = value.copy(deep=False)
        for number in changed:
            value.isetitem(number, converted(value.iloc[:, number], types.dtypes[number]))
    if _same(value.index.dtype, types.dtypes[-1]):
        return value
    values = converted(value.index.to_series(), types.dtypes[-1])
    return value.set_axis(pd.Index(values, dtype=values.dtype, name=value.index.name))


def converted(series: pd.Series[Any], dtype: Any) -> pd.Series[Any]:
    """Return a series in another type; a series without values has missing ones of this type."""
    if _same(series.dtype, dtype):
        return series
    if series.isna().all():
        # `astype` would make text of missing numbers.
        missing: pd.Series[Any] = pd.Series([], dtype=dtype, name=series.name).reindex(range(len(series)))
        return missing.set_axis(series.index)
    return series.astype(dtype)


def missing_in(chunk: Any, labels: pd.Index, positions: Sequence[int]) -> list[bool]:
    """Return for some columns of a chunk whether the column has no value."""
    chunk = _in_order(chunk, labels)
    return [bool(_column(chunk, position).isna().all()) for position in positions]


def kinds_in(chunk: Any, labels: pd.Index, candidates: Mapping[int, Sequence[Any]]) -> dict[int, list[str | None]]:
    """Return for some columns of a chunk the kind of the values in each of some types.

    The kind is None if the type loses a value, and "" if there is no value. Chunks of different kinds, for example of
    text and of numbers as objects of Python, have no type in common.
    """
    chunk = _in_order(chunk, labels)
    return {
        position: [_kind(_column(chunk, position), dtype) for dtype in dtypes]
        for position, dtypes in candidates.items()
    }


async def _found(client: Client, chunks: Sequence[Future[Any]], descriptions: Sequence[bytes]) -> list[Types]:
    first = {packed: number for number, packed in reversed([*enumerate(descriptions)])}
    known = {packed: pickle.loads(packed) for packed in first if len(packed) > _DIGEST}  # noqa: S301, from our ranks
    if long := [packed for packed in first if packed not in known]:
        fetched = await _gathered(client, types_of, [chunks[first[packed]] for packed in long])
        known |= zip(long, fetched, strict=True)
    return [known[packed] for packed in descriptions]


def _without_question(declared: Any, dtypes: Sequence[Any]) -> Any:
    """Return the type of a column that has one type in all chunks, which Dask declares; None if there are several."""
    declared = _specific(declared)
    return _native(dtypes[0]) if len(_distinct([*dtypes, *([] if declared is None else [declared])])) == 1 else None


async def _settle(
    client: Client, chunks: Sequence[Future[Any]], labels: pd.Index, columns: Mapping[int, tuple[Any, Sequence[Any]]]
) -> dict[int, Any]:
    """Return the types of columns, from the declared one and those of the chunks, without columns that have none."""
    missing = await _gathered(client, missing_in, chunks, labels=labels, positions=[*columns])
    candidates = {}
    for (position, (declared, dtypes)), is_missing in zip(columns.items(), zip(*missing, strict=True), strict=True):
        filled = [dtype for dtype, no_value in zip(dtypes, is_missing, strict=True) if not no_value]
        tried = [None if declared is None else _native(declared), _common(filled), _common(dtypes)]
        candidates[position] = _distinct([dtype for dtype in tried if dtype is not None])
    kinds = await _gathered(client, kinds_in, chunks, labels=labels, candidates=candidates)
    settled = {}
    for position, dtypes in candidates.items():
        for dtype, of_chunks in zip(dtypes, zip(*(of_chunk[position] for of_chunk in kinds), strict=True), strict=True):
            if None not in of_chunks and len({*of_chunks} - {""}) <= 1:
                settled[position] = dtype
                break
    return settled


async def _gathered(client: Client, function: Callable[..., Any], chunks: Sequence[Any], **options: Any) -> list[Any]:
    results: list[Any] = await client.gather(client.map(function, chunks, pure=False, **options), asynchronous=True)
    return results


def _kind(series: pd.Series[Any], dtype: Any) -> str | None:
    missing = series.isna()
    if not missing.all() and not _may_become(series[~missing], dtype):
        return None
    try:
        with np.errstate(invalid="ignore"):
            result = converted(series, dtype)
        if not _same(result.dtype, dtype) or not missing.equals(result.isna()):
            return None
        if missing.all():
            return ""
        if is_object_dtype(dtype):
            return str(infer_dtype(series, skipna=True))
        with np.errstate(invalid="ignore"):
            back = result[~missing].astype(series.dtype)
        return "kept" if (back == series[~missing]).all() else None
    except (ArithmeticError, TypeError, ValueError):
        return None


def _may_become(values: pd.Series[Any], dtype: Any) -> bool:
    """Return whether values stay of one kind: text that can be read as a number is no number."""
    found = values.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        if isinstance(found, pd.CategoricalDtype) and (
            found.ordered != dtype.ordered or (found.ordered and not _has_order(dtype.categories, found.categories))
        ):
            return False
        return bool(values.isin(dtype.categories).all())
    if is_object_dtype(dtype):
        return is_bool_dtype(found) or _values(found) in {"object", "text"}
    return _values(found) in {_values(dtype), "object"}


def _has_order(categories: pd.Index, others: pd.Index) -> bool:
    return bool(categories[categories.isin(others)].equals(others))


def _values(dtype: Any) -> str:
    if isinstance(dtype, pd.CategoricalDtype):
        return _values(dtype.categories.dtype)
    if is_object_dtype(dtype):
        return "object"
    if is_numeric_dtype(dtype):
        return "complex" if is_complex_dtype(dtype) else "number"
    if is_datetime64_any_dtype(dtype):
        return f"time {getattr(dtype, 'tz', None)}"
    return "text" if is_string_dtype(dtype) else str(dtype.kind)


def _common(dtypes: Sequence[Any]) -> Any:
    """Return the type for the values of all types, None if there is none."""
    dtypes = _distinct(dtypes)
    if len(dtypes) <= 1:
        return _native(dtypes[0]) if dtypes else None
    if all(isinstance(dtype, pd.CategoricalDtype) for dtype in dtypes):
        return _united(dtypes)
    plain = [dtype.categories.dtype if isinstance(dtype, pd.CategoricalDtype) else dtype for dtype in dtypes]
    return _native(pd.concat([pd.Series([], dtype=dtype) for dtype in plain]).dtype)


def _united(dtypes: Sequence[pd.CategoricalDtype]) -> pd.CategoricalDtype | None:
    """Return all categories, sorted if all lists are sorted; None if there is no common order or type."""
    values = _common([dtype.categories.dtype for dtype in dtypes])
    lists = [dtype.categories.astype(values) for dtype in dtypes]
    if any(dtype.ordered for dtype in dtypes):
        longest = max(lists, key=len)
        has_all = all(_has_order(longest, each) for each in lists)
        is_ordered = all(dtype.ordered for dtype in dtypes)
        return pd.CategoricalDtype(longest, ordered=True) if has_all and is_ordered else None
    union = lists[0]
    for each in lists[1:]:
        union = union.append(each[~each.isin(union)])
    # Pandas sorts the categories that it finds in a column.
    is_sorted = not is_object_dtype(values) and all(each.is_monotonic_increasing for each in lists)
    return pd.CategoricalDtype(union.sort_values() if is_sorted else union)


def _refusal(dtypes: Sequence[Any], owners: Callable[[Sequence[int]], str]) -> str:
    distinct = _distinct(dtypes)
    places = [
        f"{_text(one)} on {owners([number for number, dtype in enumerate(dtypes) if _same(one, dtype)])}"
        for one in distinct
    ]
    if all(isinstance(dtype, pd.CategoricalDtype) for dtype in distinct):
        remedy = "pandas.CategoricalDtype(categories, ordered=True)"
    else:
        remedy = "'str'" if any(_values(dtype) in {"text", "object"} for dtype in distinct) else "'float64'"
    return (
        f"has no common type: {'; '.join(places)}. Blocks need one type on all ranks. Convert all "
        f"partitions first, for example with astype({remedy})."
    )


def _text(dtype: Any) -> str:
    if not isinstance(dtype, pd.CategoricalDtype):
        return str(dtype)
    return f"{'ordered ' * bool(dtype.ordered)}categories {_listed(dtype.categories)}"


def places(unit: str, numbers: Sequence[int]) -> str:
    """Return the text of ranks or nodes.

    Examples
    --------
    >>> places("rank", [0]), places("node", [0, 2])
    ('rank 0', 'nodes 0, 2')
    """
    return f"{unit}{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers[:8]))}{', ...' * (len(numbers) > 8)}"


def _listed(labels: pd.Index) -> str:
    return f"[{', '.join(map(repr, labels[:8]))}{', ...' * (len(labels) > 8)}]"


def _specific(dtype: Any) -> Any:
    """Return a declared type, None if Dask knows nothing but that there are objects or categories."""
    from dask.dataframe.utils import UNKNOWN_CATEGORIES

    is_unknown = isinstance(dtype, pd.CategoricalDtype) and UNKNOWN_CATEGORIES in dtype.categories
    return None if is_object_dtype(dtype) or is_unknown else dtype


def _native(dtype: Any) -> Any:
    return dtype.newbyteorder("=") if isinstance(dtype, np.dtype) else dtype


def _same(dtype: Any, other: Any) -> bool:
    if isinstance(dtype, pd.CategoricalDtype) and isinstance(other, pd.CategoricalDtype):
        # Pandas compares categories without order as sets, and codes depend on the order.
        same_type = dtype.ordered == other.ordered and dtype.categories.dtype == other.categories.dtype
        return same_type and dtype.categories.equals(other.categories)
    return bool(dtype == other)


def _distinct(dtypes: Sequence[Any]) -> list[Any]:
    result: list[Any] = []
    for dtype in dtypes:
        if not any(_same(dtype, other) for other in result):
            result.append(dtype)
    return result


def _in_order(value: Any, labels: pd.Index) -> Any:
    return value if value.ndim == 1 or value.columns.equals(labels) else value[list(labels)]


def _column(value: Any, position: int) -> Any:
    if position == (1 if value.ndim == 1 else value.shape[1]):
        return value.index.to_series()
    return value if value.ndim == 1 else value.iloc[:, position]
