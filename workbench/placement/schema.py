"""One type for each column of the blocks of a dataframe, because ranks exchange their columns as bytes.

Dask knows the types of the first partition only: a column of integers has real numbers in files with missing values,
and each file has the categories that occur there. `agree` runs on the event loop of the client, the other functions
where the chunks are.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype, is_object_dtype, is_string_dtype

from workbench.errors import PlacementError

if TYPE_CHECKING:
    from distributed import Client, Future


# Bytes of a digest, and of the longest description that is sent whole.
_DIGEST, _SHORT = 32, 2048


@dataclass(frozen=True, eq=False)
class Types:
    """The labels of the columns of a frame or series of pandas, and their types with that of the index at the end."""

    labels: pd.Index
    dtypes: tuple[Any, ...]

    def is_same(self, other: Types) -> bool:
        """Return whether labels, types and categories are those of another, in the same order."""
        return self.labels.equals(other.labels) and all(map(_same, self.dtypes, other.dtypes))


def types_of(value: Any) -> Types:
    """Return the types of a frame or series of pandas."""
    if value.ndim == 1:
        return Types(pd.Index([value.name], dtype=object, tupleize_cols=False), (value.dtype, value.index.dtype))
    return Types(value.columns, (*value.dtypes, value.index.dtype))


def described(value: Any) -> bytes:
    """Return the pickled types of a frame or series, or a digest if these are long: a list of all categories."""
    packed = pickle.dumps(types_of(value))
    return packed if len(packed) <= _SHORT else hashlib.sha256(packed).digest()


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
        Frame or series without rows. Its types are taken if no value is lost, else a type of the chunks or their common
        type.
    owners
        Returns the text of the ranks that get rows of some chunks.

    Raises
    ------
    PlacementError
        If a column has no type for the values of all chunks, or chunks have other columns. An index without such a type
        becomes one of objects, because ranks do not exchange it.
    """
    first = dict(reversed([*zip(descriptions, chunks, strict=True)]))
    # A task would wait for the tasks of the ranks, and a cluster that ends accepts none.
    known = {each: pickle.loads(each) for each in first if len(each) > _DIGEST}  # noqa: S301  (from our ranks)
    if long := [each for each in first if each not in known]:
        known |= zip(long, await _gathered(client, types_of, [first[each] for each in long]), strict=True)
    found = [known[each] for each in descriptions]
    wanted = types_of(declared)
    labels = wanted.labels
    columns: list[list[Any]] = [[] for _ in wanted.dtypes]
    for number, types in enumerate(found):
        # Dask does not enforce the name of a series.
        positions = range(1) if declared.ndim == 1 else _positions(types.labels, labels)
        if positions is None:
            raise PlacementError(
                f"{name} has the columns {_listed(labels)}, and the rows of {owners([number])} have the columns "
                f"{_listed(types.labels)}. Select the same columns of all partitions first."
            )
        for dtypes, position in zip(columns, [*positions, -1], strict=True):
            dtypes.append(_native(types.dtypes[position]))
    candidates = [_candidates(dtype, dtypes) for dtype, dtypes in zip(wanted.dtypes, columns, strict=True)]
    # One candidate may be a type that no chunk has: all categories, or real numbers.
    unsettled = {
        position: dtypes
        for position, (dtypes, of_chunks) in enumerate(zip(candidates, columns, strict=True))
        if len(_distinct([*dtypes, *of_chunks])) != 1
    }
    kept = await _gathered(client, kept_in, chunks, labels=labels, candidates=unsettled) if unsettled else []
    for position, dtypes in unsettled.items():
        in_all = [dtype for number, dtype in enumerate(dtypes) if all(each[position][number] for each in kept)]
        if not in_all and position < len(labels):
            raise PlacementError(f"the column {labels[position]!r} of {name} {_refusal(columns[position], owners)}")
        candidates[position] = in_all or [np.dtype(object)]
    result = Types(labels, tuple(dtypes[0] for dtypes in candidates))
    return result, all(map(result.is_same, found))


def is_kept(values: Any, found: Any) -> bool:
    """Return whether an array or series has the values of another that was converted to this type.

    -1 without a sign becomes -1 again, and 2**53 + 1 is equal to its rounded value, so neither comparison is enough.
    """
    back, missing = found.astype(values.dtype), values != values  # noqa: PLR0124  (a value that is not a number)
    return bool((((found == values) & (back == values)) | (missing & (back != back))).all())  # noqa: PLR0124


def conform(value: Any, types: Types) -> Any:
    """Return a frame or series with other types; columns of the right type are not copied."""
    if value.ndim == 1:
        value = _converted(value, types.dtypes[0])
        if value.name != types.labels[0]:
            value = value.rename(types.labels[0])
    else:
        value = _in_order(value, types.labels).copy(deep=False)
        for number, dtype in enumerate(value.dtypes):
            if not _same(dtype, types.dtypes[number]):
                value.isetitem(number, _converted(value.iloc[:, number], types.dtypes[number]))
    if _same(value.index.dtype, types.dtypes[-1]):
        return value
    values = _converted(value.index.to_series(), types.dtypes[-1])
    return value.set_axis(pd.Index(values, dtype=values.dtype, name=value.index.name))


def kept_in(chunk: Any, labels: pd.Index, candidates: Mapping[int, Sequence[Any]]) -> dict[int, list[bool]]:
    """Return for some columns of a chunk whether each of some types keeps the values."""
    if chunk.ndim > 1:
        chunk = _in_order(chunk, labels)
    result = {}
    for position, dtypes in candidates.items():
        is_index = position == len(labels)
        series = chunk.index.to_series() if is_index else chunk if chunk.ndim == 1 else chunk.iloc[:, position]
        result[position] = [_keeps(series, dtype) for dtype in dtypes]
    return result


async def _gathered(client: Client, function: Callable[..., Any], chunks: Sequence[Any], **options: Any) -> list[Any]:
    results: list[Any] = await client.gather(client.map(function, chunks, pure=False, **options), asynchronous=True)
    return results


def _positions(labels: pd.Index, wanted: pd.Index) -> Sequence[int] | None:
    """Return the positions of the wanted labels; None if the labels are others."""
    if labels.equals(wanted):
        return range(len(labels))
    if len(labels) != len(wanted) or not (labels.is_unique and wanted.is_unique):
        return None
    positions = labels.get_indexer(wanted)
    return None if -1 in positions else positions.tolist()


def _in_order(frame: pd.DataFrame, labels: pd.Index) -> pd.DataFrame:
    return frame if frame.columns.equals(labels) else frame[list(labels)]


def _candidates(declared: Any, dtypes: Sequence[Any]) -> list[Any]:
    """Return the types to try for a column, the best first: one type if all chunks have the type that Dask declares."""
    # Dask declares objects, and unknown categories, where it knows nothing.
    is_unknown = is_object_dtype(declared) or isinstance(declared, pd.CategoricalDtype)
    distinct = _distinct(dtypes if is_unknown else [_native(declared), *dtypes])
    if len(distinct) == 1:
        return distinct
    lists = [dtype for dtype in distinct if isinstance(dtype, pd.CategoricalDtype)]
    others = [dtype for dtype in distinct if not isinstance(dtype, pd.CategoricalDtype)]
    if not others:
        return _united(lists)
    plain = [*others, *(dtype.categories.dtype for dtype in lists)]
    common = pd.concat([pd.Series([], dtype=dtype) for dtype in plain]).dtype
    return _distinct([*_united(lists), *others, common])


def _united(lists: Sequence[pd.CategoricalDtype]) -> list[pd.CategoricalDtype]:
    """Return the type of all categories, sorted if all lists are sorted; none if the lists are ordered otherwise."""
    indexes = [dtype.categories for dtype in lists if len(dtype.categories)] or [dtype.categories for dtype in lists]
    if any(dtype.ordered for dtype in lists):
        longest = max(indexes, key=len)
        has_all = all(longest[longest.isin(each)].equals(each) for each in indexes)
        return [pd.CategoricalDtype(longest, ordered=True)] if has_all and all(each.ordered for each in lists) else []
    if not indexes:
        return []
    union = indexes[0].append(indexes[1:]).unique()
    # Pandas sorts the categories that it finds in a column.
    is_sorted = not is_object_dtype(union) and all(each.is_monotonic_increasing for each in indexes)
    return [pd.CategoricalDtype(union.sort_values() if is_sorted else union)]


def _keeps(series: pd.Series[Any], dtype: Any) -> bool:
    if _same(series.dtype, dtype):
        return True
    if isinstance(series.dtype, pd.CategoricalDtype):
        series = series.drop_duplicates()
    missing = series.isna()
    values = _plain(series[~missing])
    try:
        with np.errstate(invalid="ignore"):
            result = _converted(series, dtype)
            if not (_same(result.dtype, dtype) and missing.equals(result.isna())):
                return False
            found = _plain(result[~missing])
            return values.empty or (_may_become(values.dtype, dtype) and is_kept(values, found))
    except (ArithmeticError, TypeError, ValueError):
        return False


def _plain(series: pd.Series[Any]) -> pd.Series[Any]:
    """Return categories as values, because pandas finds an integer among categories that are real numbers."""
    return series.astype(series.cat.categories.dtype) if isinstance(series.dtype, pd.CategoricalDtype) else series


def _converted(series: pd.Series[Any], dtype: Any) -> pd.Series[Any]:
    """Return a series in another type; a series without values has missing ones of this type."""
    if _same(series.dtype, dtype):
        return series
    if series.isna().all():
        # `astype` would make text of missing numbers.
        missing: pd.Series[Any] = pd.Series([], dtype=dtype, name=series.name).reindex(range(len(series)))
        return missing.set_axis(series.index)
    return series.astype(dtype)


def _may_become(dtype: Any, other: Any) -> bool:
    """Return whether values stay of one kind: text that can be read as a number is no number."""
    kind, other_kind = _kind(dtype), _kind(other)
    return kind in {"object", other_kind} or (other_kind == "object" and (kind == "text" or is_bool_dtype(dtype)))


def _kind(dtype: Any) -> str:
    if isinstance(dtype, pd.CategoricalDtype):
        return _kind(dtype.categories.dtype)
    if is_object_dtype(dtype):
        return "object"
    if is_numeric_dtype(dtype):
        return "number"
    if isinstance(dtype, pd.PeriodDtype):
        # A month becomes its last day, which becomes the month again.
        return str(dtype)
    return "text" if is_string_dtype(dtype) else str(getattr(dtype, "tz", dtype.kind))


def _refusal(dtypes: Sequence[Any], owners: Callable[[Sequence[int]], str]) -> str:
    distinct = _distinct(dtypes)
    found = [
        f"{_text(one)} on {owners([number for number, dtype in enumerate(dtypes) if _same(one, dtype)])}"
        for one in distinct
    ]
    remedy = "'float64'" if {_kind(dtype) for dtype in distinct} == {"number"} else "'str'"
    if all(isinstance(dtype, pd.CategoricalDtype) for dtype in distinct):
        remedy = "pandas.CategoricalDtype(categories, ordered=True)"
    return (
        f"has no common type: {'; '.join(found)}. Blocks need one type on all ranks. Convert all "
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
