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
        Shape (queries, neighbors): results of a search.
    columns
        Number of rows of the fit.
    mode
        ``"connectivity"``: ones; ``"distance"``: the distances.
    """
    # The scheduler loads this module, and does not need SciPy.
    from scipy import sparse

    numbers = distances.ravel() if mode == "distance" else np.ones(indices.size)
    ends = np.arange(0, indices.size + 1, indices.shape[1])
    return sparse.csr_array((numbers, indices.ravel(), ends), shape=(len(indices), columns))
