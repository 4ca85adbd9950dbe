"""The folds of the rows of a recipe, from the numbers of the rows, so that they do not depend on the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def fold_of(rows: NDArray[np.int64], folds: int) -> NDArray[np.int64]:
    """Return the fold of each row.

    Parameters
    ----------
    rows : ndarray of int64
        Numbers of rows, from 0.
    folds : int
        Number of folds.

    Notes
    -----
    Each group of `folds` consecutive rows has one row in each fold, so that all folds have the same size. A hash of the
    number of the group, the finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), assigns the rows: periodic
    rows, for example of days or stations, are in all folds.
    """
    group, place = np.divmod(rows.astype(np.uint64), np.uint64(folds))
    mixed = (group + np.uint64(1)) * np.uint64(_GOLDEN)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(_FIRST)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(_SECOND)
    mixed ^= mixed >> np.uint64(31)
    fold: NDArray[np.int64] = ((place + mixed % np.uint64(folds)) % np.uint64(folds)).astype(np.int64)
    return fold
