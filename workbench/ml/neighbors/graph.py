"""Neighbours as a graph: what makes it of those that were found, also on its way to blocks."""

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
        Shape (queries, neighbours): what was found.
    columns
        How many rows the fit had.
    mode
        ``"connectivity"`` for ones, ``"distance"`` for the distances.
    """
    # The scheduler, which hands this function on, need not load SciPy.
    from scipy import sparse

    numbers = distances.ravel() if mode == "distance" else np.ones(indices.size)
    ends = np.arange(0, indices.size + 1, indices.shape[1])
    return sparse.csr_array((numbers, indices.ravel(), ends), shape=(len(indices), columns))
