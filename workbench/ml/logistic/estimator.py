"""Logistic regression on ranks, with the interface of scikit-learn."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from dask.base import is_dask_collection
from scipy.special import expit, softmax
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from workbench.ml import memory_guard
from workbench.ml.checks import Checks
from workbench.ml.data import training
from workbench.ml.device_rows import part_on
from workbench.ml.engine.journal import EVERY
from workbench.ml.engine.mpi_parts import Task
from workbench.ml.engine.progress import Callback
from workbench.ml.estimator import Estimator, dtype_for
from workbench.ml.logistic import fit as logistic_fit
from workbench.ml.logistic.device_part import DeviceLogisticPart
from workbench.ml.logistic.part import LogisticPart
from workbench.ml.scores import Classifier

if TYPE_CHECKING:
    from numpy.typing import NDArray


class LogisticRegression(Classifier, Estimator):
    """Logistic regression with an L2 penalty.

    Parameters
    ----------
    penalty : {"l2", None}, default="l2"
        None has the meaning of ``C=np.inf``.
    C : float, default=1.0
        Inverse of the strength of the penalty.
    tol : float, default=1e-4
        Convergence: the largest absolute component of the gradient of the loss per row.
    max_iter : int, default=100
        Maximum number of iterations.
    fit_intercept : bool, default=True
        Whether the model has an intercept, which is not penalized.
    class_weight : dict or "balanced", default=None
        Weights by label; ``"balanced"``: all classes have the same total weight. Default: all 1.
    solver : {"lbfgs", "newton-cholesky", "newton-cg"}, default="lbfgs"
        ``"newton-cholesky"`` is Newton's method. It needs five to ten passes over the rows; ``"lbfgs"`` needs dozens,
        or hundreds for features in different units. Each of its passes multiplies rows by rows: features times classes
        (1 for two classes) should be at most some thousand. ``"newton-cg"`` is an alias.
    warm_start : bool, default=False
        Whether a fit starts with the weights of the last fit.
    engine : {"auto", "mpi", "dask", "local"}, default="auto"
        See `workbench.ml.engine.fitting.fit`.
    device : str, default=None
        Where ranks compute a fit: None, the CPU, with NumPy; or a device of PyTorch such as ``"cuda"``, to which each
        rank copies its dense rows when the fit begins. Predictions are computed on the CPU.
    verbose : int, default=0
        1: a progress bar; 2: one line per iteration.
    callback : callable, default=None
        Called after each iteration with its numbers: ``iteration``, ``loss``, ``gradient``.

    Attributes
    ----------
    classes_ : ndarray of shape (classes,)
        The labels, sorted.
    coef_ : ndarray of shape (1, features) or (classes, features)
        The weights of the features.
    intercept_ : ndarray of shape (1,) or (classes,)
        The intercepts.
    n_iter_ : ndarray of shape (1,)
        Number of iterations of the fit.
    n_features_in_ : int
        Number of features.
    engine_ : str
        The engine of the fit: ``"mpi"``, ``"dask"``, or ``"local"``, this process.

    Notes
    -----
    The loss is that of scikit-learn, with the same scale and, except for ``"newton-cg"``, the same solver, so that
    coefficients agree to about `tol`, or to rounding for a small `tol`. With ``"lbfgs"`` this requires columns with
    similar deviations: otherwise rounding changes the number of iterations, and the coefficients of other engines and
    numbers of ranks agree less. If several models fit best, Newton's method returns one of them.

    Examples
    --------
    >>> from workbench.ml import LogisticRegression
    >>> model = LogisticRegression().fit([[0.0], [1.0], [2.0], [3.0]], ["no", "no", "yes", "yes"])
    >>> model.predict([[0.5], [2.5]])
    array(['no', 'yes'], dtype='<U3')
    >>> model.predict_proba([[1.5]]).round(2)
    array([[0.5, 0.5]])
    """

    _sparse = True
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **Estimator._parameter_constraints,
        "device": [str, None],
        "penalty": [StrOptions({"l2"}), None],
        "C": [Interval(Real, 0, None, closed="right")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "max_iter": [Interval(Integral, 0, None, closed="left")],
        "fit_intercept": ["boolean"],
        "class_weight": [dict, StrOptions({"balanced"}), None],
        "solver": [StrOptions({"lbfgs", "newton-cg", "newton-cholesky"})],
        "warm_start": ["boolean"],
    }

    def __init__(
        self,
        penalty: str | None = "l2",
        *,
        C: float = 1.0,
        tol: float = 1e-4,
        max_iter: int = 100,
        fit_intercept: bool = True,
        class_weight: Mapping[Any, float] | str | None = None,
        solver: str = "lbfgs",
        warm_start: bool = False,
        engine: str = "auto",
        device: str | None = None,
        verbose: int = 0,
        callback: Callback | None = None,
    ) -> None:
        self.penalty = penalty
        self.C = C
        self.tol = tol
        self.max_iter = max_iter
        self.fit_intercept = fit_intercept
        self.class_weight = class_weight
        self.solver = solver
        self.warm_start = warm_start
        self.engine = engine
        self.device = device
        self.verbose = verbose
        self.callback = callback

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
        y : array-like, or Dask array or series of shape (rows,)
            The labels.
        sample_weight : float, array-like, or Dask array or series of shape (rows,), default=None
            Weights of the rows; None: all 1.
        checkpoint : path, default=None
            Folder from which the fit continues after an interruption: see `workbench.ml.estimator.Estimator._fit`.
        every : float, default=60.0
            Seconds of work that an interruption costs at most.

        Returns
        -------
        LogisticRegression
            The estimator itself.

        Raises
        ------
        ValueError, TypeError
            The error of scikit-learn if rows, labels or weights are not valid.
        InvalidRequest
            If the matrices of ``"newton-cholesky"`` exceed the memory limit of a rank.
        """
        checks = Checks(type(self).__name__, target="labels", sparse=self._sparse, integers=True)
        data = training(self, checks, X, y, sample_weight)
        settings = self._settings(data.dtype)
        if self.solver != "lbfgs":
            name = type(self).__name__
            # Only the ranks know the number of classes.
            limit = memory_guard.check(name, data, self.engine, logistic_fit.needs, "Pass solver='lbfgs'", later=np.inf)
            settings = replace(settings, limit=limit)
        fitted = self._fit(
            Task(logistic_fit.fit, settings, part_on(self.device, LogisticPart, DeviceLogisticPart), checks),
            data,
            checkpoint=checkpoint,
            every=every,
        )
        weights = np.atleast_2d(fitted.weights).astype(data.dtype)
        self.classes_ = fitted.classes
        self.coef_, self.intercept_ = np.ascontiguousarray(weights[:, :-1]), weights[:, -1].copy()
        self.n_iter_ = np.array([fitted.iterations], dtype=np.int32)
        if fitted.message:
            self._warn(fitted.message, fitted.iterations)
        return self

    def _settings(self, dtype: np.dtype[Any]) -> logistic_fit.Settings:
        if isinstance(self.class_weight, Mapping) and not all(weight >= 0 for weight in self.class_weight.values()):
            raise ValueError(
                f"The 'class_weight' parameter of {type(self).__name__} must be weights of at least 0. Got "
                f"{self.class_weight!r} instead."
            )
        start = None
        if self.warm_start and hasattr(self, "coef_"):
            start = np.column_stack([self.coef_, self.intercept_])
            start = start[0] if len(start) == 1 else start
        return logistic_fit.Settings(
            C=self.C if self.penalty else np.inf,
            tol=self.tol,
            max_iter=self.max_iter,
            features=self.n_features_in_,
            fit_intercept=self.fit_intercept,
            class_weight=self.class_weight,
            solver=self.solver,
            eps=float(np.finfo(dtype).eps),
            start=start,
        )

    def decision_function(self, X: Any) -> Any:
        """Return the linear scores.

        Parameters
        ----------
        X : array, CSR matrix, dataframe, or Dask array or dataframe of shape (rows, features)
            The rows.

        Returns
        -------
        array of shape (rows,) for two classes, else (rows, classes), float32 if rows and coefficients are
            For two classes the log-odds of the second class. Lazy if X is a Dask collection.
        """
        check_is_fitted(self)
        if is_dask_collection(X):
            columns = None if len(self.classes_) == 2 else len(self.classes_)
            return self._map("decision_function", X, columns, dtype_for(X, self.coef_))
        X = self._checked(X)
        scores: NDArray[Any] = np.asarray(X @ self.coef_.T) + self.intercept_
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict_proba(self, X: Any) -> Any:
        """Return the probability of each class.

        Parameters
        ----------
        X : array, CSR matrix, dataframe, or Dask array or dataframe of shape (rows, features)
            The rows.

        Returns
        -------
        array of shape (rows, classes), float32 if rows and coefficients are
            In the order of ``classes_``. Lazy if X is a Dask collection.
        """
        check_is_fitted(self)
        if is_dask_collection(X):
            return self._map("predict_proba", X, len(self.classes_), dtype_for(X, self.coef_))
        scores = self.decision_function(X)
        if scores.ndim == 1:
            return np.column_stack([expit(-scores), expit(scores)])
        return softmax(scores, axis=1)

    def predict_log_proba(self, X: Any) -> Any:
        """Return the logarithm of the probability of each class.

        Parameters
        ----------
        X : array, CSR matrix, dataframe, or Dask array or dataframe of shape (rows, features)
            The rows.

        Returns
        -------
        array of shape (rows, classes), float32 if rows and coefficients are
            The natural logarithms of the results of `predict_proba`.
        """
        return np.log(self.predict_proba(X))

    def predict(self, X: Any) -> Any:
        """Return the most probable label of each row.

        Parameters
        ----------
        X : array, CSR matrix, dataframe, or Dask array or dataframe of shape (rows, features)
            The rows.

        Returns
        -------
        array of shape (rows,), dtype of the labels
            Lazy if X is a Dask collection.
        """
        check_is_fitted(self)
        if is_dask_collection(X):
            return self._map("predict", X, None, self.classes_.dtype)
        scores = self.decision_function(X)
        return self.classes_[(scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)]
