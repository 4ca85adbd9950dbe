"""The labels of a target: the sorted classes, and the number of the class of each row."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_Array = NDArray[Any]


def classes_of(y: _Array) -> _Array:
    """Return the sorted labels; raise TypeError if labels cannot be compared."""
    if y.dtype != object:
        return np.unique(y)
    # Comparing text in Python is slow, so that only unique labels are sorted.
    import pandas as pd

    try:
        return np.unique(pd.unique(y))
    except TypeError as error:
        raise TypeError(
            f"y has labels of several types, which cannot be sorted ({error}). Convert the labels to text, for example "
            "y.astype(str)."
        ) from error


def classes_of_both(left: _Array, right: _Array) -> _Array:
    """Return the sorted labels of two blocks, from those of each; a block without rows has no type of labels."""
    if not (len(left) and len(right)):
        return left if len(left) else right
    return classes_of(np.concatenate([left, right]))


def codes_of(y: _Array, classes: _Array) -> NDArray[np.int32]:
    """Return the number of the class of each row."""
    codes: _Array
    if y.dtype == object:
        import pandas as pd

        codes = pd.Index(classes).get_indexer(pd.Index(y))
    else:
        codes = np.searchsorted(classes, y)
    return codes.astype(np.int32)
