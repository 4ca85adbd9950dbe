"""scikit-learn's checks of arrays, for a whole in this process and for a block on a rank.

What is as it has to be is let through without it: to load it takes a rank two seconds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Number
from typing import Any, ClassVar

import numpy as np
from scipy import sparse

FLOATS = [np.float64, np.float32]
"""What blocks are made of; anything else becomes the first of them."""


def checked(dtype: Any) -> np.dtype[Any]:
    """Return what numbers of a dtype become: one of `FLOATS`."""
    return np.dtype(dtype if dtype in FLOATS else FLOATS[0])


@dataclass(frozen=True)
class Checks:
    """What rows have to be."""

    estimator: str
    """Name of the class, for messages."""
    target: str = ""
    """``"labels"``, ``"numbers"``, or empty if there is no target."""
    sparse: bool = False
    """Whether blocks may be matrices in CSR format."""
    several: bool = False
    """Whether a row may have several targets."""
    several_axes: bool = False
    """Whether a row may have more than one axis, as an image has."""
    frames: ClassVar[bool] = False
    """Whether parts take dataframes as they are."""

    def apply(self, X: Any, y: Any, weight: Any) -> tuple[Any, Any, Any]:
        """Return the rows, their targets and weights as arrays; copied only where they have to be converted.

        Raises
        ------
        ValueError, TypeError
            As scikit-learn words it.
        """
        if self._is_plain(X, y, weight):
            return X, y if self.target else None, weight
        from sklearn.utils import check_array, check_X_y
        from sklearn.utils.multiclass import check_classification_targets

        options = {
            "accept_sparse": "csr" if self.sparse else False,
            "dtype": FLOATS,
            "order": "C",
            "allow_nd": self.several_axes,
            "estimator": self.estimator,
        }
        if self.target:
            X, y = check_X_y(X, y, y_numeric=self.target == "numbers", multi_output=self.several, **options)
            if sparse.issparse(y):
                raise TypeError("Sparse targets were passed, but dense ones are required: pass y.toarray()")
            if self.target == "labels":
                check_classification_targets(y)
        else:
            X, y = check_array(X, input_name="X", **options), None
        return X, y, weights(weight, X)

    def _is_plain(self, X: Any, y: Any, weight: Any, *, finite: bool = True) -> bool:
        """Return whether nothing is to be converted or refused; False where this would take long to find out.

        Parameters
        ----------
        X, y, weight
            As of `apply`.
        finite
            Whether X is searched for numbers that are not finite.
        """
        return (
            (_is_finite(X, 2) if finite else _is_array(X, 2))
            and X.dtype in FLOATS
            and X.flags.c_contiguous
            and X.size > 0
            and (not self.target or self._is_plain_target(y, len(X)))
            and (weight is None or (_is_finite(weight, 1) and weight.dtype == X.dtype and weight.shape == X.shape[:1]))
            and (weight is None or weight.min() > 0)
        )

    def _is_plain_target(self, y: Any, rows: int) -> bool:
        if not (_is_finite(y, 1) or (self.several and _is_finite(y, 2))) or len(y) != rows or not y.size:
            return False
        with np.errstate(invalid="ignore"):
            return self.target == "numbers" or y.dtype.kind in "iub" or bool((y == y.astype(np.int64)).all())

    def shape(self, y: Any) -> None:
        """Refuse targets whose shape cannot be, without computing them.

        Raises
        ------
        ValueError
            As scikit-learn words it.
        """
        if y.ndim > 2:
            by = f" by {self.estimator}" if self.several else ""
            raise ValueError(f"Found array with dim {y.ndim}, while dim <= 2 is required{by}.")
        if y.ndim == 2 and y.shape[1] != 1 and not self.several:
            raise ValueError(f"y should be a 1d array, got an array of shape {y.shape} instead.")


class FindsNonFinite:
    """A part that reports numbers of X that are not finite by itself, in its first pass, so that `make` skips a pass.

    A method that passes over all rows calls `refuse_non_finite` where a result of the pass is not finite.
    """

    finds_non_finite = True
    """Whether `make` leaves the search for such numbers to the part."""
    _check: Callable[[], Any] | None = None

    def refuse_non_finite(self) -> None:
        """Check the block as scikit-learn does; return if all numbers are finite, as a sum of large ones may not be.

        Raises
        ------
        ValueError
            As scikit-learn words it.
        """
        if self._check is not None:
            self._check()


def _is_array(array: Any, ndim: int) -> bool:
    """Return whether this is a numpy array of numbers, of so many dimensions."""
    return type(array) is np.ndarray and array.ndim == ndim and array.dtype.kind in "fiub"


def _is_finite(array: Any, ndim: int) -> bool:
    """Return whether this is a numpy array of so many dimensions, and surely has finite numbers only."""
    if not _is_array(array, ndim):
        return False
    # A sum that is none may be of finite numbers, too.
    with np.errstate(over="ignore", invalid="ignore"):
        return array.dtype.kind != "f" or bool(np.isfinite(array.sum()))


def weights(weight: Any, X: Any) -> Any:
    """Return the weights of rows as an array of their dtype; None where there are none.

    Raises
    ------
    ValueError
        As scikit-learn, if they are not one per row, or below 0.
    """
    if weight is None:
        return None
    from sklearn.utils.validation import _check_sample_weight

    weight = weight if isinstance(weight, Number) else np.asarray(weight)
    # Those of a block may all be 0, which scikit-learn refuses; the algorithms refuse it of all.
    if np.shape(weight) == X.shape[:1] and not weight.any():
        return np.zeros(X.shape[0], X.dtype)
    return _check_sample_weight(weight, X, dtype=X.dtype, ensure_non_negative=True)


def make(part: Any, checks: Checks, start: int, *columns: Any) -> Any:
    """Return the part of a block: its rows, targets and weights, and the number of its first row.

    Raises
    ------
    ValueError, TypeError
        As `Checks.apply`.
    """
    if not checks.frames and any(hasattr(column, "iloc") for column in columns):
        from workbench.ml.frames import array_of

        columns = tuple(array_of(column) if hasattr(column, "iloc") else column for column in columns)
    # Whole numbers need no more than this, as scikit-learn does it.
    if not checks.frames and _is_array(columns[0], 2) and columns[0].dtype.kind != "f":
        columns = columns[0].astype(FLOATS[0], order="C"), *columns[1:]
    if not (getattr(part, "finds_non_finite", False) and checks._is_plain(*columns, finite=False)):
        return part(*checks.apply(*columns), start)
    X, y, weight = columns
    made = part(X, y if checks.target else None, weight, start)
    made._check = functools.partial(checks.apply, *columns)
    return made
