"""The computation of lazy collections on a cluster, with the partitions that Dask makes.

Notes
-----
Dask reads several small Parquet files in one task if only some columns are used. Its ``persist`` returns the dataframe
with the partitions of before this optimization, some of which have no value (dask#12488). No other module calls
``persist``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distributed import Client


def optimized(collections: Sequence[Any]) -> list[Any]:
    """Return collections with the dataframes among them optimized together, so that their partitions are final.

    Notes
    -----
    Tasks that several dataframes share are one task in the results.
    """
    from dask._collections import new_collection
    from dask.base import collections_to_expr

    result = list(collections)
    frames = [number for number, value in enumerate(result) if is_frame(value)]
    if frames:
        together = collections_to_expr([result[number] for number in frames]).optimize()
        for number, expression in zip(frames, together.operands, strict=True):
            result[number] = new_collection(expression)
    return result


def materialize(client: Client | None, collections: Sequence[Any]) -> list[Any]:
    """Start to compute Dask collections, and return them with their values; without a client where Dask computes.

    Notes
    -----
    The dataframes are computed together, and so are the others, so that shared tasks run once.
    """
    from dask.base import persist

    result = optimized(collections)
    for of_frames in (False, True):
        numbers = [number for number, value in enumerate(result) if is_frame(value) is of_frames]
        if numbers:
            together = [result[number] for number in numbers]
            persisted = client.persist(together) if client else persist(*together, traverse=False)
            for number, value in zip(numbers, persisted, strict=True):
                result[number] = value
    return result


def is_frame(collection: Any) -> bool:
    """Return whether a value is a dataframe or series of Dask."""
    return hasattr(collection, "divisions")


def with_final_partitions(frame: Any) -> Any:
    """Return a lazy dataframe whose partitions no further optimization joins, whatever is derived from it."""
    from dask.core import flatten
    from dask.dataframe import from_graph

    [frame] = optimized([frame])
    keys = list(flatten(frame.__dask_keys__()))
    return from_graph(frame.dask, frame._meta, frame.divisions, keys, "partitions")  # noqa: SLF001, no public name
