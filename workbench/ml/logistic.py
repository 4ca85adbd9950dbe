"""Logistic regression in the manner of scikit-learn, on ranks."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from dask.base import is_dask_collection
from scipy.special import expit, softmax
from sklearn.base import ClassifierMixin
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from workbench.ml import logistic_fit
from workbench.ml.checks import Checks
from workbench.ml.data import training
from workbench.ml.estimator import Estimator
from workbench.ml.logistic_part import LogisticPart
from workbench.ml.reporting import Callback
from workbench.ml.task import Task

if TYPE_CHECKING:
    from numpy.typing import NDArray


class LogisticRegression(ClassifierMixin, Estimator):  # type: ignore[misc]
    """Logistic regression with an L2 penalty.

    Parameters
    ----------
    C
        Inverse of the strength of the penalty.
    tol
        It has converged where no component of the gradient of the loss per row is larger; with ``"newton-cg"`` and an
        intercept that by features less their means.
    max_iter
        Iterations at most.
    fit_intercept
        Whether the model has a constant beside the features. It is not penalised.
    class_weight
        Weights by label, or ``"balanced"`` for such that all classes weigh the same. Default: all 1.
    solver
        ``"lbfgs"`` or ``"newton-cg"``.
    warm_start
        Whether a fit starts from what the one before has found.
    engine
        ``"auto"``, ``"dask"`` or ``"mpi"``; see the guide.
    verbose
        1 for a bar, 2 for a line each iteration.
    callback
        Is called after each iteration with its numbers: ``iteration``, ``loss``, ``gradient``.

    Attributes
    ----------
    classes_ : ndarray of shape (classes,)
        The labels, sorted.
    coef_ : ndarray of shape (1, features) or (classes, features)
        The weights of the features.
    intercept_ : ndarray of shape (1,) or (classes,)
        The constants.
    n_iter_ : ndarray of shape (1,)
        Iterations of the fit.
    n_features_in_ : int
        Number of features.
    engine_ : str
        What the fit ran on: ``"mpi"``, ``"dask"``, or ``"local"``, this process.

    Notes
    -----
    Minimises what scikit-learn's estimator of this name minimises, with the same scale and the same solver, so that
    coefficients agree to about `tol`, and to rounding where `tol` is small. ``"newton-cg"`` looks at rows from their
    mean, without a copy of them: features far from 0 cost it no iterations.
    """

    _sparse = True
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **Estimator._parameter_constraints,
        "C": [Interval(Real, 0, None, closed="right")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "max_iter": [Interval(Integral, 0, None, closed="left")],
        "fit_intercept": ["boolean"],
        "class_weight": [dict, StrOptions({"balanced"}), None],
        "solver": [StrOptions({"lbfgs", "newton-cg"})],
        "warm_start": ["boolean"],
    }

    def __init__(
        self,
        C: float = 1.0,
        *,
        tol: float = 1e-4,
        max_iter: int = 100,
        fit_intercept: bool = True,
        class_weight: Mapping[Any, float] | str | None = None,
        solver: str = "lbfgs",
        warm_start: bool = False,
        engine: str = "auto",
        verbose: int = 0,
        callback: Callback | None = None,
    ) -> None:
        self.C = C
        self.tol = tol
        self.max_iter = max_iter
        self.fit_intercept = fit_intercept
        self.class_weight = class_weight
        self.solver = solver
        self.warm_start = warm_start
        self.engine = engine
        self.verbose = verbose
        self.callback = callback

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the model.

        Parameters
        ----------
        X
            Shape (rows, features): array, CSR matrix, dataframe, or a Dask array or dataframe.
        y
            Shape (rows,): the labels.
        sample_weight
            Shape (rows,): weights of the rows. Default: all 1.

        Returns
        -------
        LogisticRegression
            This one.
        """
        checks = Checks(type(self).__name__, target="labels", sparse=self._sparse)
        data = training(self, checks, X, y, sample_weight)
        found = self._fit(Task(logistic_fit.fit, self._settings(data.dtype), LogisticPart, checks), data)
        weights = np.atleast_2d(found.weights).astype(data.dtype)
        self.classes_ = found.classes
        self.coef_, self.intercept_ = np.ascontiguousarray(weights[:, :-1]), weights[:, -1].copy()
        self.n_iter_ = np.array([found.iterations], dtype=np.int32)
        if found.message:
            self._warn(found.message, found.iterations)
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
            C=self.C,
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
        """Return the linear scores, shape (rows,) for two classes, else (rows, classes)."""
        check_is_fitted(self)
        if is_dask_collection(X):
            columns = None if len(self.classes_) == 2 else len(self.classes_)
            return self._map("decision_function", X, columns, self.coef_.dtype)
        X = self._checked(X)
        scores: NDArray[Any] = np.asarray(X @ self.coef_.T) + self.intercept_
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict_proba(self, X: Any) -> Any:
        """Return the probability of each class, shape (rows, classes), in the order of ``classes_``."""
        check_is_fitted(self)
        if is_dask_collection(X):
            return self._map("predict_proba", X, len(self.classes_), self.coef_.dtype)
        scores = self.decision_function(X)
        if scores.ndim == 1:
            return np.column_stack([expit(-scores), expit(scores)])
        return softmax(scores, axis=1)

    def predict_log_proba(self, X: Any) -> Any:
        """Return the logarithms of `predict_proba`."""
        return np.log(self.predict_proba(X))

    def predict(self, X: Any) -> Any:
        """Return the most probable labels, shape (rows,)."""
        check_is_fitted(self)
        if is_dask_collection(X):
            return self._map("predict", X, None, self.classes_.dtype)
        scores = self.decision_function(X)
        return self.classes_[(scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)]
