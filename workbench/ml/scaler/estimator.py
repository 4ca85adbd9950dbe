"""Standardization on ranks, with the interface of scikit-learn."""

from __future__ import annotations

import copy
from typing import Any, ClassVar, Self

import numpy as np
from dask.base import is_dask_collection
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import OneToOneFeatureMixin
from sklearn.utils import check_array
from sklearn.utils.sparsefuncs import inplace_column_scale
from sklearn.utils.validation import check_is_fitted, validate_data

from workbench.ml.algebra.sums import Moments
from workbench.ml.checks import FLOATS, checked
from workbench.ml.data import training
from workbench.ml.device_rows import part_on
from workbench.ml.engine.mpi_parts import Task
from workbench.ml.engine.parts import weighed
from workbench.ml.engine.progress import Callback
from workbench.ml.estimator import Estimator, dtype_of
from workbench.ml.scaler.device_part import DeviceScalerPart
from workbench.ml.scaler.part import ScalerChecks, ScalerPart, moments, refuse_to_center
from workbench.ml.transformer import Transformer

_Array = NDArray[Any]

# Checks of the rows of `transform`; blocks may be empty.
_APPLIED: dict[str, Any] = {
    "accept_sparse": "csr",
    "dtype": FLOATS,
    "force_writeable": True,
    "ensure_all_finite": "allow-nan",
    "ensure_min_samples": 0,
}


class StandardScaler(OneToOneFeatureMixin, Transformer, Estimator):  # type: ignore[misc]
    """Scaling of features to mean 0 and variance 1.

    Parameters
    ----------
    copy : bool, default=True
        Whether `transform` returns a new array. False: an array of floats in this process is scaled in place. Blocks of
        Dask collections are never changed.
    with_mean : bool, default=True
        Whether the mean is subtracted. Sparse rows cannot be centered.
    with_std : bool, default=True
        Whether features are divided by their standard deviation.
    engine : {"auto", "mpi", "dask", "local"}, default="auto"
        See `workbench.ml.engine.fitting.fit`.
    device : str, default=None
        Where ranks compute a fit: None, the CPU, with NumPy; or a device of PyTorch such as ``"cuda"``, to which each
        rank copies its dense rows when the fit begins. Predictions are computed on the CPU.
    verbose : int, default=0
        1: a progress bar; 2: one line per pass over the rows.
    callback : callable, default=None
        Called after each pass over the rows with its number and name: ``pass``, ``name``.

    Attributes
    ----------
    mean_ : ndarray of shape (features,), float64
        The means; None without `with_mean` and `with_std`.
    var_ : ndarray of shape (features,), float64
        The variances; None without `with_std`.
    scale_ : ndarray of shape (features,), float64
        The divisors of the features: the standard deviation, or 1 for a constant feature; None without `with_std`.
    n_samples_seen_ : float or ndarray of shape (features,)
        Number (or weight) of the rows; one value per feature if numbers are missing.
    n_features_in_ : int
        Number of features.
    engine_ : str
        The engine of the last fit: ``"mpi"``, ``"dask"``, or ``"local"``, this process.

    Notes
    -----
    The result is that of scikit-learn to about 14 digits, also if the mean is much larger than the deviations. Missing
    numbers (NaN) are ignored, and stay missing. Weights must not be negative. A rank needs 2 MiB in addition to its
    block.

    Examples
    --------
    >>> from workbench.ml import StandardScaler
    >>> model = StandardScaler().fit([[0.0, 0.0], [0.0, 0.0], [1.0, 1.0], [1.0, 1.0]])
    >>> model.mean_
    array([0.5, 0.5])
    >>> model.transform([[2.0, 2.0]])
    array([[3., 3.]])
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **Estimator._parameter_constraints,
        "device": [str, None],
        "copy": ["boolean"],
        "with_mean": ["boolean"],
        "with_std": ["boolean"],
    }

    def __init__(
        self,
        *,
        copy: bool = True,
        with_mean: bool = True,
        with_std: bool = True,
        engine: str = "auto",
        device: str | None = None,
        verbose: int = 0,
        callback: Callback | None = None,
    ) -> None:
        self.copy = copy
        self.with_mean = with_mean
        self.with_std = with_std
        self.engine = engine
        self.device = device
        self.verbose = verbose
        self.callback = callback

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Compute means and variances.

        Parameters
        ----------
        X : array, CSR matrix, dataframe, or Dask array or dataframe of shape (rows, features)
            The rows.
        y : None
            Not used.
        sample_weight : float, array-like, or Dask array or series of shape (rows,), default=None
            Weights of the rows, at least 0; None: all 1.

        Returns
        -------
        StandardScaler
            The estimator itself.

        Raises
        ------
        ValueError, TypeError
            The error of scikit-learn if rows or weights are not valid.
        """
        return self._learn(X, sample_weight, None)

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Add rows to the earlier rows.

        Parameters
        ----------
        X, y, sample_weight
            See `fit`.

        Returns
        -------
        StandardScaler
            The estimator itself.
        """
        if not hasattr(self, "n_samples_seen_"):
            return self.fit(X, y, sample_weight)
        return self._learn(X, sample_weight, self._seen())

    def _learn(self, X: Any, weight: Any, seen: Moments | None) -> Self:
        checks = ScalerChecks(type(self).__name__, integers=True, with_mean=self.with_mean)
        data = training(self, checks, X, None, weight, reset=seen is None)
        fitted_moments = self._fit(
            Task(moments, seen, part_on(self.device, ScalerPart, DeviceScalerPart), checks), data
        )
        if weight is not None:
            weighed(float(np.max(fitted_moments[0])))
        self._keep(*fitted_moments)
        return self

    def _seen(self) -> Moments:
        rows = np.broadcast_to(self.n_samples_seen_, self.n_features_in_)
        mean, variance = (
            np.zeros(len(rows)) if value is None else np.nan_to_num(value) for value in (self.mean_, self.var_)
        )
        return rows, mean, variance * rows

    def _keep(self, rows: _Array, mean: _Array, deviations: _Array) -> None:
        unknown = np.full(len(rows), np.nan)
        mean = np.where(rows > 0, mean, unknown)
        variance = np.divide(deviations, rows, out=unknown, where=rows > 0)
        self.n_samples_seen_ = rows[0] if (rows == rows[0]).all() else rows
        self.mean_ = mean if self.with_mean or self.with_std else None
        self.var_ = variance if self.with_std else None
        self.scale_ = np.where(_is_constant(rows, mean, variance), 1.0, np.sqrt(variance)) if self.with_std else None

    def transform(self, X: Any) -> Any:
        """Return the scaled rows.

        Parameters
        ----------
        X : array, CSR matrix, dataframe, or Dask array or dataframe of shape (rows, features)
            The rows.

        Returns
        -------
        array, CSR matrix or Dask array of shape (rows, features), float32 if X is, else float64
            Lazy if X is a Dask collection.

        Raises
        ------
        ValueError
            If the rows are sparse and `with_mean` is set.
        """
        check_is_fitted(self)
        if is_dask_collection(X):
            return self._lazily("transform", X)
        X = validate_data(self, X, reset=False, copy=self.copy, **_APPLIED)
        refuse_to_center(X, self.with_mean)
        if sparse.issparse(X):
            if self.scale_ is not None:
                inplace_column_scale(X, 1 / self.scale_)
            return X
        if self.with_mean and self.mean_ is not None:
            X -= self.mean_.astype(X.dtype)
        if self.scale_ is not None:
            X /= self.scale_.astype(X.dtype)
        return X

    def inverse_transform(self, X: Any) -> Any:
        """Return the rows before scaling.

        Parameters
        ----------
        X : array, CSR matrix, dataframe, or Dask array or dataframe of shape (rows, features)
            Scaled rows.

        Returns
        -------
        array, CSR matrix or Dask array of shape (rows, features), float32 if X is, else float64
            In the units of the features. Lazy if X is a Dask collection.
        """
        check_is_fitted(self)
        if is_dask_collection(X):
            return self._lazily("inverse_transform", X, transformed=self.n_features_in_)
        X = check_array(X, estimator=self, input_name="X", copy=self.copy, **_APPLIED)
        refuse_to_center(X, self.with_mean)
        if sparse.issparse(X):
            if self.scale_ is not None:
                inplace_column_scale(X, self.scale_)
            return X
        if self.scale_ is not None:
            X *= self.scale_.astype(X.dtype)
        if self.with_mean and self.mean_ is not None:
            X += self.mean_.astype(X.dtype)
        return X

    def _lazily(self, method: str, X: Any, transformed: int | None = None) -> Any:
        model = copy.copy(self)
        # Other tasks may use the block, which must not change.
        model.copy = True
        columns, dtype = self.n_features_in_, checked(dtype_of(X))
        return model._map(method, X, columns, dtype, transformed=transformed, stays_sparse=True)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = not self.with_mean
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def _is_constant(rows: _Array, mean: _Array, variance: _Array) -> _Array:
    """Return which variances are rounding errors: the bound of Chan, Golub and LeVeque for two passes."""
    rounding = rows * np.finfo(np.float64).eps
    constant: _Array = variance <= rounding * variance + np.square(rounding * mean)
    return constant
