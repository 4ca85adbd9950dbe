"""The programs of the apps bench: each prepares its data on a cluster, and runs on it.

The sum of an array and its transpose, and the merge of two dataframes, are the two programs of MPI4Dask
(arXiv 2101.08878); the third is a truncated singular value decomposition. Blocks are few and large: each worker has one
block of rows of an array, so that about half of what a worker needs lies on another one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd
    from distributed import Client

# Seconds that preparing or running one may take.
_DEADLINE = 300.0
# Side of the square array; rows of each partition of a dataframe, and partitions on each worker.
_SIDE, _ROWS, _PARTITIONS = 7000, 500_000, 2
# Singular values, and the shape of the matrix they are of; its columns are in two blocks.
RANK, _TALL, _WIDE = 20, 20_000, 2000


@dataclass(frozen=True)
class Pipeline:
    """One program."""

    prepare: Callable[[Client, int, float], Any]
    """Return the input, lying on the workers, by a client, a seed and a factor for its size."""
    run: Callable[[Client, Any], np.ndarray]
    """Return the result, some numbers, by a client and the input."""


def _persisted(client: Client, collections: list[Any]) -> Any:
    from distributed import wait

    from workbench.placement.sources import materialize

    there = materialize(client, collections)
    wait(there, timeout=_DEADLINE)
    return there


def _computed(client: Client, collection: Any) -> Any:
    return client.compute(collection).result(timeout=_DEADLINE)


def _block(client: Client, rows: int) -> int:
    """Return how many rows of an array each worker has."""
    return -(-rows // len(client.nthreads()))


def _square(client: Client, seed: int, scale: float) -> Any:
    import dask.array as da

    side = max(1, int(_SIDE * scale**0.5))
    x = da.random.default_rng(seed).random((side, side), chunks=(_block(client, side), side))
    return _persisted(client, [x])[0]


def _transpose(client: Client, x: Any) -> np.ndarray:
    return np.atleast_1d(_computed(client, (x + x.T).sum()))


def part_of_frame(number: int, seed: int, rows: int, keys: int, column: str) -> pd.DataFrame:
    """Return a partition of a dataframe: random keys below `keys`, and a column of random numbers."""
    import pandas as pd

    random = np.random.default_rng([seed, number])
    return pd.DataFrame({"key": random.integers(0, keys, rows), column: random.random(rows)})


def _frames(client: Client, seed: int, scale: float) -> Any:
    import dask.dataframe as dd

    rows, partitions = max(1, int(_ROWS * scale)), _PARTITIONS * len(client.nthreads())
    frames = []
    for number, column in enumerate(("left", "right")):
        common: dict[str, Any] = {"seed": 2 * seed + number, "rows": rows, "keys": rows * partitions, "column": column}
        meta = part_of_frame(0, **common).iloc[:0]
        frames.append(dd.from_map(part_of_frame, range(partitions), meta=meta, **common))
    return _persisted(client, frames)


def totals(part: pd.DataFrame) -> pd.DataFrame:
    """Return number of rows and sums of a partition of the merged frame."""
    import pandas as pd

    return pd.DataFrame({"rows": [float(len(part))], "left": [part["left"].sum()], "right": [part["right"].sum()]})


def _merge(client: Client, frames: Any) -> np.ndarray:
    left, right = frames
    # Dask asks the current client which way to shuffle.
    with client.as_current():
        merged = left.merge(right, on="key").map_partitions(totals, meta=dict.fromkeys(("rows", "left", "right"), "f8"))
        result: np.ndarray = _computed(client, merged).sum().to_numpy()
    return result


def _matrix(client: Client, seed: int, scale: float) -> Any:
    import dask.array as da

    rows = max(_WIDE // 10, int(_TALL * scale))
    x = da.random.default_rng(seed).standard_normal((rows, _WIDE), chunks=(_block(client, rows), _WIDE // 2))
    return _persisted(client, [x])[0]


def _svd(client: Client, x: Any) -> np.ndarray:
    import dask.array as da

    _, values, _ = da.linalg.svd_compressed(x, RANK, n_power_iter=2, seed=0)
    return np.asarray(_computed(client, values))


PIPELINES = {
    "transpose": Pipeline(_square, _transpose),
    "merge": Pipeline(_frames, _merge),
    "svd": Pipeline(_matrix, _svd),
}
"""All programs by name."""
