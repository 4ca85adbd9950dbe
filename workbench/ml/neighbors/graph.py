"""Graphs of neighbors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def graph(distances: NDArray[Any], indices: NDArray[Any], columns: int, mode: str) -> Any:
    """Return a matrix in CSR format with a column for each row of the fit.

    Parameters
    ----------
    distances, indices
        Results of a search: shape (queries, neighbors), or shape (queries,) with an array for each query.
    columns
        Number of rows of the fit.
    mode
        ``"connectivity"``: ones; ``"distance"``: the distances.
    """
    # The scheduler loads this module, and does not need SciPy.
    from scipy import sparse

    ends = np.cumsum([0, *map(len, indices)])
    rows = _flat(indices).astype(np.int64, copy=False)
    numbers = _flat(distances).astype(np.float64, copy=False) if mode == "distance" else np.ones(len(rows))
    return sparse.csr_array((numbers, rows, ends), shape=(len(indices), columns))


def _flat(numbers: NDArray[Any]) -> NDArray[Any]:
    return numbers.ravel() if numbers.ndim > 1 or not len(numbers) else np.concatenate(numbers)
