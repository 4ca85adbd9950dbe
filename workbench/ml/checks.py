"""The checks of scikit-learn, for arrays in this process and for blocks on ranks.

Valid arrays pass without scikit-learn, since its import takes two seconds on a rank.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Number
from typing import Any, ClassVar

import numpy as np
from scipy import sparse

from workbench.gpu.tensors import is_tensor, on_host
from workbench.ml.device_rows import TensorRows

FLOATS = [np.float64, np.float32]
"""The dtypes of valid blocks; other numbers are converted to the first."""


def checked(dtype: Any) -> np.dtype[Any]:
    """Return the dtype to which numbers of a dtype are converted: one of `FLOATS`."""
    return np.dtype(dtype if dtype in FLOATS else FLOATS[0])


@dataclass(frozen=True)
class Checks:
    """The requirements for rows, targets and weights."""

    estimator: str
    """Name of the class, for messages."""
    target: str = ""
    """``"labels"``, ``"numbers"``, or empty for an estimator without a target."""
    sparse: bool = False
    """Whether blocks may be matrices in CSR format."""
    several: bool = False
    """Whether a row may have several targets."""
    integers: bool = False
    """Whether the part converts integers and booleans itself, some rows at a time: no block is copied then."""
    several_axes: bool = False
    """Whether a row may have more than one axis, as an image has."""
    frames: ClassVar[bool] = False
    """Whether parts take dataframes as they are."""

    def apply(self, X: Any, y: Any, weight: Any) -> tuple[Any, Any, Any]:
        """Return rows, targets and weights as arrays; a conversion and `distinct` copy, nothing else does.

        Raises
        ------
        ValueError, TypeError
            The error of scikit-learn.
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
                raise TypeError("The targets y are sparse, and dense targets are required. Pass y.toarray().")
            if self.target == "labels":
                check_classification_targets(y)
        else:
            X, y = check_array(X, input_name="X", **options), None
        return distinct(X), y, weights(weight, X)

    def of_block(self, X: Any, y: Any, weight: Any) -> tuple[Any, Any, Any]:
        """Return the result of `apply` for a block, which may have no rows: a fit counts the rows of all blocks."""
        if X.shape[0] or self.frames:
            return self.apply(X, y, weight)
        X = X.astype(checked(X.dtype))
        if self.target:
            y = np.asarray(y, np.float64 if self.target == "numbers" else None)
            y = y if self.several else y.ravel()
        return X, y if self.target else None, None if weight is None else np.empty(0, X.dtype)

    def _is_plain(self, X: Any, y: Any, weight: Any, *, finite: bool = True) -> bool:
        """Return whether the arrays are valid without a conversion; False where the answer needs scikit-learn.

        Parameters
        ----------
        X, y, weight
            Arguments of `apply`.
        finite
            Whether to search X for numbers that are not finite.
        """
        return (
            (_is_finite(X, 2) if finite else _is_array(X, 2))
            and (X.dtype in FLOATS or (self.integers and X.dtype.kind != "f"))
            and X.flags.c_contiguous
            and X.size > 0
            and (not self.target or self._is_plain_target(y, len(X)))
            and (
                weight is None
                or (_is_finite(weight, 1) and weight.dtype == checked(X.dtype) and weight.shape == X.shape[:1])
            )
            and (weight is None or weight.min() > 0)
        )

    def _is_plain_target(self, y: Any, rows: int) -> bool:
        if not (_is_finite(y, 1) or (self.several and _is_finite(y, 2))) or len(y) != rows or not y.size:
            return False
        with np.errstate(invalid="ignore"):
            return self.target == "numbers" or y.dtype.kind in "iub" or bool((y == y.astype(np.int64)).all())

    def shape(self, y: Any) -> None:
        """Raise the ValueError of scikit-learn if the shape of the targets is not valid; compute nothing."""
        if y.ndim > 2:
            by = f" by {self.estimator}" if self.several else ""
            raise ValueError(f"Found array with dim {y.ndim}, while dim <= 2 is required{by}.")
        if y.ndim == 2 and y.shape[1] != 1 and not self.several:
            raise ValueError(f"y should be a 1d array, got an array of shape {y.shape} instead.")


class FindsNonFinite:
    """A part that detects numbers of X that are not finite in its first pass, so that `make` needs no pass.

    A method that passes over all rows calls `refuse_non_finite` if a result of the pass is not finite.
    """

    finds_non_finite = True
    """Whether `make` leaves the search for these numbers to the part."""
    _check: Callable[[], Any] | None = None

    def search_with(self, check: Callable[[], Any]) -> None:
        """Set the check that raises the error for a block with such a number."""
        self._check = check

    def refuse_non_finite(self) -> None:
        """Raise the ValueError of scikit-learn for the block; return if only a sum of finite numbers was not finite."""
        if self._check is not None:
            self._check()


def _is_array(array: Any, ndim: int) -> bool:
    """Return whether this is a NumPy array of numbers with this number of dimensions."""
    return type(array) is np.ndarray and array.ndim == ndim and array.dtype.kind in "fiub"


def _is_finite(array: Any, ndim: int) -> bool:
    """Return whether this is a NumPy array of finite numbers; False for finite numbers whose sum overflows."""
    if not _is_array(array, ndim):
        return False
    with np.errstate(over="ignore", invalid="ignore"):
        return array.dtype.kind != "f" or bool(np.isfinite(array.sum()))


def distinct(X: Any) -> Any:
    """Return rows in CSR format with one entry per element, in a copy if there are more; other rows unchanged."""
    if sparse.issparse(X) and not X.has_canonical_format:
        # Entries are squared, and several of one element add up.
        X = X.copy()
        X.sum_duplicates()
    return X


def weights(weight: Any, X: Any) -> Any:
    """Return the weights of rows as an array with the dtype of the rows; None without weights.

    Raises
    ------
    ValueError
        The error of scikit-learn if the number of weights is wrong, or a weight is negative.
    """
    if weight is None:
        return None
    from sklearn.utils.validation import _check_sample_weight

    weight = weight if isinstance(weight, Number) else np.asarray(weight)
    # scikit-learn refuses a block whose weights are all 0; the algorithms refuse this of all blocks together.
    if np.shape(weight) == X.shape[:1] and not weight.any():
        return np.zeros(X.shape[0], X.dtype)
    return _check_sample_weight(weight, X, dtype=X.dtype, ensure_non_negative=True)


def make(part: Any, checks: Checks, start: int, *columns: Any) -> Any:
    """Return the part of a block, from the number of the first row, and the rows, targets and weights.

    Raises
    ------
    ValueError, TypeError
        The error of `Checks.of_block`.
    """
    if not checks.frames and any(hasattr(column, "iloc") for column in columns):
        from workbench.ml.frames import array_of

        columns = tuple(array_of(column) if hasattr(column, "iloc") else column for column in columns)
    if is_tensor(columns[0]) and getattr(part, "takes_tensors", False):
        return part(*_on_device(checks, *columns), start)
    columns = tuple(map(on_host, columns))
    # Integers need no more than this; scikit-learn does the same.
    rows = columns[0]
    integers = not checks.frames and _is_array(rows, 2) and rows.dtype.kind != "f"
    if integers and not (checks.integers and rows.flags.c_contiguous):
        columns = columns[0].astype(FLOATS[0], order="C"), *columns[1:]
    if not (getattr(part, "finds_non_finite", False) and checks._is_plain(*columns, finite=False)):
        return part(*checks.of_block(*columns), start)
    X, y, weight = columns
    made = part(X, y if checks.target else None, weight, start)
    made.search_with(functools.partial(checks.apply, *columns))
    return made


def _on_device(checks: Checks, X: Any, y: Any, weight: Any) -> tuple[TensorRows, Any, Any]:
    """Return a tensor of rows on its device, and the targets and weights, which the host has."""
    rows, y, weight = TensorRows(X), on_host(y), on_host(weight)
    if rows.dtype.kind == "c" or not bool(X.sum().isfinite()):
        # The error of scikit-learn, unless numbers may be missing.
        checks.apply(np.asarray(rows), y, weight)
    if rows.dtype not in FLOATS and not (checks.integers and rows.dtype.kind != "f"):
        rows = TensorRows(X.double())
    # Zeros take the place of the rows, of which the host needs no copy.
    _, y, weight = checks.of_block(
        np.zeros([len(X), *(min(1, size) for size in X.shape[1:])], checked(rows.dtype)), y, weight
    )
    return rows, y, weight
