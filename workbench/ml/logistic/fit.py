"""Fit of logistic regression on parts: loss and gradient of all ranks, and the steps of the solver."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from workbench.errors import InvalidRequest
from workbench.ml.algebra.equations import solver
from workbench.ml.algebra.memory_limits import UNASKED, Limit
from workbench.ml.algebra.newton import newton
from workbench.ml.algebra.row_slices import upper
from workbench.ml.engine.parts import Parts, weighed
from workbench.ml.labels import classes_of_both

if TYPE_CHECKING:
    from scipy.optimize import OptimizeResult

_Vector = NDArray[np.float64]

# The values of scikit-learn: maximum steps of a line search, and the relative decrease of the loss that ends a fit.
_LINE_SEARCH, _NO_DECREASE = 50, 64 * np.finfo(float).eps


@dataclass(frozen=True)
class Fitted:
    """The result of a fit."""

    classes: NDArray[Any]
    weights: _Vector
    """Shape (features + 1,) for two classes, else (classes, features + 1): slopes, then the intercept."""
    iterations: int
    message: str
    """Why the fit ended before it converged; empty for a converged fit."""


@dataclass(frozen=True)
class Settings:
    """Settings of a fit, with the names of the parameters."""

    C: float
    tol: float
    max_iter: int
    features: int
    fit_intercept: bool
    class_weight: Mapping[Any, float] | str | None
    solver: str
    eps: float
    """Precision of the dtype of the scores."""
    start: _Vector | None
    """First weights, in the shape of `Fitted.weights`; None: zeros."""
    limit: Limit = UNASKED


def needs(features: int, classes: int = 2) -> int:
    """Return the bytes of the matrices of rank 0 in Newton's method, at most."""
    return 40 * ((features + 1) * (1 if classes == 2 else classes)) ** 2


def fit(parts: Parts, settings: Settings) -> Fitted:
    """Fit a model.

    Parameters
    ----------
    parts
        `LogisticPart` objects.
    settings
        The settings.

    Raises
    ------
    ValueError
        If the labels are of one class only, or if a class without weight would be balanced.
    InvalidRequest
        If the number of classes is too large for the matrices of Newton's method.

    Notes
    -----
    Minimizes the loss per row plus ``|w|^2 / (2 C n)``, where n is the total weight; the intercept is not penalized.
    The scale is that of scikit-learn, so that tolerances have the same meaning. L-BFGS: Liu and Nocedal, Mathematical
    Programming 45 (1989), as implemented in SciPy. `workbench.ml.algebra.equations.solver` computes Newton steps.
    """
    classes = parts.fold(classes_of_both, "classes")
    if len(classes) < 2:
        raise ValueError(
            "This solver needs samples of at least 2 classes in the data, but the data contains only one class: "
            f"{classes[0]!r}"
        )
    if settings.solver != "lbfgs" and (over := settings.limit.over(needs(settings.features, len(classes)))):
        raise InvalidRequest(
            f"LogisticRegression of {settings.features} features and {len(classes)} classes with "
            f"solver={settings.solver!r} needs {over}. Pass solver='lbfgs', which needs no matrices.",
            option="solver",
        )
    total = weighed(parts.sum("encode", classes, _class_weights(parts, classes, settings.class_weight)))
    problem = _Problem(parts, len(classes), total, settings)
    solution = problem.minimize()
    message = "" if solution.success else solution.message
    return Fitted(classes, problem.weights(solution.x), min(solution.nit, settings.max_iter), message)


def _class_weights(parts: Parts, classes: NDArray[Any], setting: Mapping[Any, float] | str | None) -> _Vector | None:
    if setting is None:
        return None
    if setting == "balanced":
        counts = parts.sum("count", classes)
        if not counts.all():
            raise ValueError(
                f"class_weight='balanced' is not possible, because all rows of class "
                f"{classes[counts == 0].tolist()[0]!r} have the weight 0. Remove these rows, or pass a weight for each "
                "class."
            )
        balanced: _Vector = counts.sum() / (len(classes) * counts)
        return balanced
    from sklearn.utils.class_weight import compute_class_weight

    weights: _Vector = compute_class_weight(setting, classes=classes, y=classes)
    return weights


class _Problem:
    """The loss as a function of one vector."""

    def __init__(self, parts: Parts, classes: int, total: float, settings: Settings) -> None:
        self._parts, self._settings, self._total = parts, settings, total
        width = settings.features + 1
        self.shape = (width,) if classes == 2 else (classes, width)
        if settings.start is not None and settings.start.shape != self.shape:
            raise ValueError(
                f"warm_start=True is not possible: the last fit has weights of shape {settings.start.shape}, and these "
                f"rows and labels need weights of shape {self.shape}. Fit a new estimator (sklearn.base.clone)."
            )
        self._penalty = 1 / (settings.C * total)
        self._steps = 0
        self._gradient = np.empty(0)

    def minimize(self) -> OptimizeResult:
        """Return the result of the solver."""
        # Only one rank runs the solver, and needs the import.
        from scipy.optimize import minimize

        settings = self._settings
        start = np.zeros(self.shape) if settings.start is None else settings.start.astype(np.float64)
        if settings.solver != "lbfgs":
            return newton(
                self._with_curvature,
                start.ravel(),
                tol=settings.tol,
                eps=settings.eps,
                max_iter=settings.max_iter,
                report=self._report,
            )
        options = {"maxiter": settings.max_iter, "maxls": _LINE_SEARCH, "gtol": settings.tol, "ftol": _NO_DECREASE}
        return minimize(
            self._loss_and_gradient,
            start.ravel(),
            method="L-BFGS-B",
            jac=True,
            callback=self._report,
            options=options,
        )

    def weights(self, x: _Vector) -> _Vector:
        """Return the vector as weights in their shape; the intercept is 0 without `fit_intercept`."""
        weights = x.reshape(self.shape).copy()
        if not self._settings.fit_intercept:
            weights[..., -1] = 0
        return weights

    def _loss_and_gradient(self, x: _Vector) -> tuple[float, _Vector]:
        weights = self.weights(x)
        return self._with_penalty(weights, *self._parts.sum("loss_and_gradient", weights))

    def _with_curvature(self, x: _Vector) -> tuple[float, _Vector, Callable[[], _Vector]]:
        weights = self.weights(x)
        *sums, packed = self._parts.sum("curvature", weights)
        loss, gradient = self._with_penalty(weights, *sums)

        def step() -> _Vector:
            solution: _Vector = solver(self._hessian(packed))(-gradient[:, None])[:, 0]
            return self._between_classes(solution, weights)

        return loss, gradient, step

    def _with_penalty(self, weights: _Vector, loss: float, gradient: _Vector) -> tuple[float, _Vector]:
        """Return the loss per row and its gradient with the penalty, from the sums over all rows."""
        gradient = gradient / self._total + self._penalty * self._slopes(weights)
        if not self._settings.fit_intercept:
            gradient[..., -1] = 0
        self._gradient = gradient.ravel()
        penalty = self._penalty / 2 * float(np.square(self._slopes(weights)).sum())
        return loss / self._total + penalty, self._gradient

    def _hessian(self, packed: _Vector) -> _Vector:
        """Return the second derivatives of the loss per row with respect to the vector."""
        width = self.shape[-1]
        classes = 1 if len(self.shape) == 1 else self.shape[0]
        hessian = np.empty((classes, width, classes, width))
        pairs = itertools.combinations_with_replacement(range(classes), 2)
        for (left, right), half in zip(pairs, packed / self._total, strict=True):
            block = upper(half, width)
            block += np.triu(block, 1).T
            if left != right:
                block *= -1
            if not self._settings.fit_intercept:
                block[-1], block[:, -1] = 0, 0
            block[np.arange(width - 1), np.arange(width - 1)] += self._penalty if left == right else 0
            hessian[left, :, right] = hessian[right, :, left] = block
        # LAPACK needs columns first, and a symmetric matrix equals its transpose.
        matrix: _Vector = hessian.reshape(classes * width, -1).T
        return matrix

    def _between_classes(self, step: _Vector, weights: _Vector) -> _Vector:
        """Return a step whose part that is the same for all classes, and changes no probability, is the exact one."""
        steps = step.reshape(self.shape)
        if len(self.shape) > 1:
            # Only the penalty determines this part, which is zero at the minimum. Rounding errors of the curvature, in
            # single precision or of features in large units, would make it large.
            steps -= steps.mean(axis=0)
            if self._penalty:
                steps -= self._slopes(weights).mean(axis=0)
        return steps.ravel()

    def _slopes(self, weights: _Vector) -> _Vector:
        """Return the weights with the intercepts, which are not penalized, set to 0."""
        slopes = weights.copy()
        slopes[..., -1] = 0
        return slopes

    def _report(self, intermediate_result: OptimizeResult) -> None:
        """Report an iteration."""
        self._steps += 1
        largest = float(np.abs(intermediate_result.get("jac", self._gradient)).max())
        self._parts.report({"iteration": self._steps, "loss": float(intermediate_result.fun), "gradient": largest})
