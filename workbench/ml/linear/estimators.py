"""Linear regression on ranks, with the interface of scikit-learn."""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from numbers import Real
from typing import Any, ClassVar, Self

import numpy as np
from dask.base import is_dask_collection
from scipy.linalg import LinAlgWarning
from sklearn.base import MultiOutputMixin
from sklearn.utils._param_validation import Interval
from sklearn.utils.validation import check_is_fitted

from workbench.ml import memory_guard
from workbench.ml.checks import Checks
from workbench.ml.data import training
from workbench.ml.device_rows import part_on
from workbench.ml.engine.journal import EVERY
from workbench.ml.engine.mpi_parts import Task
from workbench.ml.engine.progress import Callback
from workbench.ml.estimator import Estimator, dtype_for
from workbench.ml.linear import fit as linear_fit
from workbench.ml.linear.device_part import DeviceLinearPart
from workbench.ml.linear.part import LinearPart
from workbench.ml.scores import Regressor
from workbench.text import count

# Maximum number of columns in a warning.
_NAMED = 10
_INSTEAD = (
    "Reduce the number of features (TruncatedSVD with solver='randomized', or "
    "sklearn.feature_extraction.FeatureHasher), or use ranks with more memory. For labels, LogisticRegression needs no "
    "matrix."
)


class _Linear(MultiOutputMixin, Regressor, Estimator):  # type: ignore[misc]
    """The base class of `LinearRegression` and `Ridge`."""

    _sparse = True
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **Estimator._parameter_constraints,
        "device": [str, None],
        "fit_intercept": ["boolean"],
    }

    fit_intercept: bool
    device: str | None

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        checkpoint: str | os.PathLike[str] | None = None,
        every: float = EVERY,
    ) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : array, CSR matrix, dataframe, or Dask array or dataframe of shape (rows, features)
            The rows.
        y : array-like, or Dask array or series of shape (rows,) or (rows, targets)
            The targets.
        sample_weight : float, array-like, or Dask array or series of shape (rows,), default=None
            Weights of the rows; None: all 1.
        checkpoint : path, default=None
            Folder from which the fit continues after an interruption: see `workbench.ml.estimator.Estimator._fit`.
        every : float, default=60.0
            Seconds of work that an interruption costs at most.

        Returns
        -------
        LinearRegression or Ridge
            The estimator itself.

        Raises
        ------
        ValueError, TypeError
            The error of scikit-learn if rows, targets or weights are not valid.
        InvalidRequest
            If the matrices of features x features exceed the memory limit of a rank: before the fit, or in
            the fit if columns nearly depend on each other, so that a QR decomposition is needed.
        """
        name, sparse = type(self).__name__, self._sparse
        checks = Checks(name, target="numbers", sparse=sparse, several=True, integers=True)
        data = training(self, checks, X, y, sample_weight)
        settings = self._settings(*data.X.shape[:1], *data.y.shape[1:])
        later = 0 if np.all(settings.alpha) else settings.for_triangles(data.X.shape[1])
        limit = memory_guard.check(name, data, self.engine, linear_fit.needs, _INSTEAD, later=later)
        task = Task(
            linear_fit.fit, replace(settings, limit=limit), part_on(self.device, LinearPart, DeviceLinearPart), checks
        )
        fitted = self._fit(task, data, checkpoint=checkpoint, every=every)
        self.coef_, self.intercept_ = fitted.coef.astype(data.dtype), fitted.intercept.astype(data.dtype)
        if data.y.ndim == 1:
            self.coef_, self.intercept_ = self.coef_[0], self.intercept_[0]
        if not self.fit_intercept:
            self.intercept_ = data.dtype.type(0)
        self._take(fitted, data.dtype)
        return self

    def _settings(self, rows: int, targets: int = 1) -> linear_fit.Settings:
        raise NotImplementedError

    def _take(self, fitted: linear_fit.Fitted, dtype: np.dtype[Any]) -> None:
        """Set the other attributes of a fit."""

    def predict(self, X: Any) -> Any:
        """Return the predicted targets.

        Parameters
        ----------
        X : array, CSR matrix, dataframe, or Dask array or dataframe of shape (rows, features)
            The rows.

        Returns
        -------
        array of shape (rows,) or (rows, targets), float32 if rows and coefficients are
            In the unit of the targets. Lazy if X is a Dask collection.
        """
        check_is_fitted(self)
        if is_dask_collection(X):
            columns = None if self.coef_.ndim == 1 else len(self.coef_)
            return self._map("predict", X, columns, dtype_for(X, self.coef_))
        X = self._checked(X)
        return X @ self.coef_.T + self.intercept_


class LinearRegression(_Linear):
    """Least squares.

    Parameters
    ----------
    fit_intercept : bool, default=True
        Whether the model has an intercept.
    tol : float, default=1e-6
        Singular values of the rows, scaled to columns of length 1, count as 0 below this fraction of the largest. The
        minimum is 1e-15 times the number of features.
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
    coef_ : ndarray of shape (features,) or (targets, features)
        The coefficients of the features.
    intercept_ : float or ndarray of shape (targets,)
        The intercept; 0 without `fit_intercept`.
    rank_ : int
        Number of singular values above `tol`.
    singular_ : ndarray of shape (min(rows, features),)
        Singular values of the weighted rows, which are centered with an intercept. Most fits compute these from
        squares: values below 1e-8 of the largest are rounding errors.
    n_features_in_ : int
        Number of features.
    engine_ : str
        The engine of the fit: ``"mpi"``, ``"dask"``, or ``"local"``, this process.

    Notes
    -----
    The loss is that of scikit-learn, in units in which each column has length 1, so that features in very different
    units all count; scikit-learn ignores features below `tol` times the largest. If several models fit best, a warning
    names the columns that depend on each other, and the result is the model with the shortest coefficients, as in
    scikit-learn, to about 1e-8 of the largest. Each rank reduces its rows to half a matrix of features x features, in
    float64. If a singular value between `tol` and 1e-5 of the largest is possible, a pass of QR decompositions follows,
    since squares have too few digits. The coefficients of float64 rows agree with scikit-learn to about 1e-10 of the
    largest.

    Examples
    --------
    >>> import numpy as np
    >>> from workbench.ml import LinearRegression
    >>> X = np.array([[1.0, 1.0], [1.0, 2.0], [2.0, 2.0], [2.0, 3.0]])
    >>> model = LinearRegression().fit(X, X @ [1.0, 2.0] + 3)
    >>> model.coef_.round(6)
    array([1., 2.])
    >>> model.predict([[3.0, 5.0]]).round(6)
    array([16.])
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **_Linear._parameter_constraints,
        "tol": [Interval(Real, 0, None, closed="left")],
    }

    def __init__(
        self,
        *,
        fit_intercept: bool = True,
        tol: float = 1e-6,
        engine: str = "auto",
        device: str | None = None,
        verbose: int = 0,
        callback: Callback | None = None,
    ) -> None:
        self.fit_intercept = fit_intercept
        self.tol = tol
        self.engine = engine
        self.device = device
        self.verbose = verbose
        self.callback = callback

    def _settings(self, rows: int, targets: int = 1) -> linear_fit.Settings:
        return linear_fit.Settings(
            alpha=0.0, fit_intercept=self.fit_intercept, tol=self.tol, rows=rows, targets=targets
        )

    def _take(self, fitted: linear_fit.Fitted, dtype: np.dtype[Any]) -> None:
        self.rank_, self.singular_ = fitted.rank, fitted.singular.astype(dtype)
        if len(fitted.dependent):
            warnings.warn(self._of_rank(fitted), LinAlgWarning, stacklevel=3)

    def _of_rank(self, fitted: linear_fit.Fitted) -> str:
        """Return the warning that several models fit best."""
        names = getattr(self, "feature_names_in_", range(self.n_features_in_))
        named = [repr(names[column]) for column in fitted.dependent[:_NAMED]]
        more = len(fitted.dependent) - len(named)
        return (
            f"LinearRegression: the rows of {count(self.n_features_in_, 'feature')} have rank {fitted.rank}, so "
            "several models fit best. The result is the model whose coefficients have the smallest norm. Columns that "
            f"are constant or depend on each other: {', '.join(named)}{f' and {more} more' if more else ''}. Remove "
            "dependent columns, or use Ridge."
        )


class Ridge(_Linear):
    """Least squares with an L2 penalty.

    Parameters
    ----------
    alpha : float or array-like of shape (targets,), default=1.0
        The strength of the penalty, ``alpha * |coef|^2`` in addition to the sum of squares: a number, or one number per
        target. The intercept is not penalized.
    fit_intercept : bool, default=True
        Whether the model has an intercept.
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
    coef_ : ndarray of shape (features,) or (targets, features)
        The coefficients of the features.
    intercept_ : float or ndarray of shape (targets,)
        The intercept; 0 without `fit_intercept`.
    n_iter_ : ndarray of shape (targets,), int32
        Always 1: the equations are solved once.
    n_features_in_ : int
        Number of features.
    engine_ : str
        The engine of the fit: ``"mpi"``, ``"dask"``, or ``"local"``, this process.

    Notes
    -----
    Each rank reduces its rows to sums of products, like `LinearRegression`. A Cholesky decomposition for each different
    `alpha` solves the equations, and another pass corrects the coefficients. These agree with scikit-learn to about
    1e-10 of the largest if the condition of the rows with the penalty is below 1e5.

    Examples
    --------
    >>> import numpy as np
    >>> from workbench.ml import Ridge
    >>> X = np.array([[1.0, 1.0], [1.0, 2.0], [2.0, 2.0], [2.0, 3.0]])
    >>> model = Ridge(alpha=1.0).fit(X, X @ [1.0, 2.0] + 3)
    >>> model.coef_.round(6)
    array([0.8, 1.4])
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **_Linear._parameter_constraints,
        "alpha": [Interval(Real, 0, None, closed="left"), "array-like"],
    }

    def __init__(
        self,
        alpha: Any = 1.0,
        *,
        fit_intercept: bool = True,
        engine: str = "auto",
        device: str | None = None,
        verbose: int = 0,
        callback: Callback | None = None,
    ) -> None:
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.engine = engine
        self.device = device
        self.verbose = verbose
        self.callback = callback

    def _take(self, fitted: linear_fit.Fitted, dtype: np.dtype[Any]) -> None:
        self.n_iter_ = np.ones(len(fitted.coef), dtype=np.int32)
        if len(fitted.coef) == 1:
            # Also for targets in one column, as in scikit-learn.
            self.coef_ = np.ravel(self.coef_)

    def _settings(self, rows: int, targets: int = 1) -> linear_fit.Settings:
        alpha = np.asarray(self.alpha, dtype=np.float64)
        if alpha.shape not in {(), (1,), (targets,)}:
            raise ValueError(
                f"Number of targets and number of penalties do not correspond: alpha has shape {alpha.shape}, and y "
                f"has {count(targets, 'target')}. Pass one number, or one number per target."
            )
        if not (alpha >= 0).all():
            raise ValueError(
                f"The 'alpha' parameter of Ridge must be numbers of at least 0. Got {self.alpha!r} instead."
            )
        return linear_fit.Settings(alpha=alpha, fit_intercept=self.fit_intercept, tol=0.0, rows=rows, targets=targets)
