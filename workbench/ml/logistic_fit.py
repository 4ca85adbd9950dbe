"""Logistic regression fitted on parts: what all ranks are asked, and the steps in between."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from workbench.ml.newton import newton
from workbench.ml.parts import Parts, weighed

if TYPE_CHECKING:
    from scipy.optimize import OptimizeResult

_Vector = NDArray[np.float64]

# As scikit-learn has them: steps of a line search, and the relative decrease of the loss that is none.
_LINE_SEARCH, _NO_DECREASE = 50, 64 * np.finfo(float).eps


@dataclass(frozen=True)
class Fitted:
    """What a fit has found."""

    classes: NDArray[Any]
    weights: _Vector
    """Shape (features + 1,) for two classes, else (classes, features + 1): slopes, then the intercept."""
    iterations: int
    message: str
    """Why it ended before it converged; empty if it did converge."""


@dataclass(frozen=True)
class Settings:
    """How a fit is made; the names are those of the estimator."""

    C: float
    tol: float
    max_iter: int
    features: int
    fit_intercept: bool
    class_weight: Mapping[Any, float] | str | None
    solver: str
    eps: float
    """Of the dtype of the rows, in which scores are computed."""
    start: _Vector | None
    """Weights to start from, shaped as those of `Fitted`."""


def fit(parts: Parts, settings: Settings) -> Fitted:
    """Fit a model.

    Parameters
    ----------
    parts
        `LogisticPart` objects.
    settings
        How.

    Raises
    ------
    ValueError
        If the labels are of one class only, or if a class without weight is to be balanced.

    Notes
    -----
    Minimises the loss per row plus ``|w|^2 / (2 C n)``, n being all weight; the intercept is not penalised. The scale
    is that of scikit-learn, so that its tolerances mean the same. L-BFGS: Liu and Nocedal, Mathematical Programming 45
    (1989), in SciPy's version.
    """
    classes = parts.fold(np.union1d, "classes")
    if len(classes) < 2:
        raise ValueError(
            "This solver needs samples of at least 2 classes in the data, but the data contains only one class: "
            f"{classes[0]!r}"
        )
    total = weighed(parts.sum("encode", classes, _class_weights(parts, classes, settings.class_weight)))
    problem = _Problem(parts, len(classes), total, settings)
    found = problem.minimise()
    message = "" if found.success else found.message
    return Fitted(classes, problem.weights(found.x), min(found.nit, settings.max_iter), message)


def _class_weights(parts: Parts, classes: NDArray[Any], wanted: Mapping[Any, float] | str | None) -> _Vector | None:
    if wanted is None:
        return None
    if wanted == "balanced":
        counts = parts.sum("count", classes)
        if not counts.all():
            raise ValueError(
                f"class_weight='balanced': all rows of class {classes[counts == 0].tolist()[0]!r} have the weight 0, "
                "and no weight of the class balances them: leave them out, or pass a weight for each class"
            )
        balanced: _Vector = counts.sum() / (len(classes) * counts)
        return balanced
    from sklearn.utils.class_weight import compute_class_weight

    weights: _Vector = compute_class_weight(wanted, classes=classes, y=classes)
    return weights


class _Problem:
    """The function to be minimised, of one vector."""

    def __init__(self, parts: Parts, classes: int, total: float, settings: Settings) -> None:
        self._parts, self._settings, self._total = parts, settings, total
        width = settings.features + 1
        self.shape = (width,) if classes == 2 else (classes, width)
        if settings.start is not None and settings.start.shape != self.shape:
            raise ValueError(
                f"warm_start=True: the last fit has weights of shape {settings.start.shape}, and these rows and labels "
                f"need {self.shape}: fit a new estimator (sklearn.base.clone)"
            )
        self._penalty = 1 / (settings.C * total)
        self._steps = 0
        self._gradient = np.empty(0)
        self._bent: _Vector | None = None
        self._middle = self._mean() if settings.solver == "newton-cg" else np.zeros(settings.features)

    def minimise(self) -> OptimizeResult:
        """Return where the minimum is, or how far one has come."""
        # Of all ranks only one comes here.
        from scipy.optimize import minimize

        settings = self._settings
        start = np.zeros(self.shape) if settings.start is None else settings.start.astype(np.float64)
        start[..., -1] += start[..., :-1] @ self._middle
        if settings.solver == "newton-cg":
            return newton(
                self._loss_and_gradient,
                self._times_hessian,
                start.ravel(),
                tol=settings.tol,
                eps=settings.eps,
                max_iter=settings.max_iter,
                tell=self._tell,
            )
        options = {"maxiter": settings.max_iter, "maxls": _LINE_SEARCH, "gtol": settings.tol, "ftol": _NO_DECREASE}
        return minimize(
            self._loss_and_gradient,
            start.ravel(),
            method="L-BFGS-B",
            jac=True,
            callback=self._tell,
            options=options,
        )

    def weights(self, x: _Vector) -> _Vector:
        """Return the weights in their shape, of the vector that is varied.

        Notes
        -----
        Without an intercept it is 0. With Newton-CG the last of the vector are the scores at the middle of the rows.
        These and the slopes hardly depend on each other, intercepts and slopes the more the farther the rows are from
        0: conjugate gradients would need more steps than there are digits.
        """
        weights = x.reshape(self.shape).copy()
        weights[..., -1] -= weights[..., :-1] @ self._middle
        if not self._settings.fit_intercept:
            weights[..., -1] = 0
        return weights

    def _varied(self, gradient: _Vector) -> _Vector:
        """Return a gradient by the weights as one by the vector that is varied."""
        if self._settings.fit_intercept:
            gradient[..., :-1] -= gradient[..., -1:] * self._middle
        else:
            gradient[..., -1] = 0
        return gradient.ravel()

    def _mean(self) -> _Vector:
        """Return the mean of the rows, shape (features,); 0 without an intercept."""
        if not self._settings.fit_intercept:
            return np.zeros(self._settings.features)
        # Where all weights are 0 the curvature is the same for all rows.
        intercept = np.zeros(self.shape)
        self._parts.sum("bend", intercept)
        self._bent = intercept.ravel().copy()
        intercept.reshape(-1, self.shape[-1])[0, -1] = 1
        sums = self._parts.sum("times_hessian", intercept).reshape(-1, self.shape[-1])[0]
        mean: _Vector = sums[:-1] / sums[-1]
        return mean

    def _loss_and_gradient(self, x: _Vector) -> tuple[float, _Vector]:
        weights = self.weights(x)
        loss, gradient = self._parts.sum("loss_and_gradient", weights)
        gradient = gradient / self._total + self._penalty * self._penalised(weights)
        self._gradient = self._varied(gradient)
        penalty = self._penalty / 2 * float(np.square(self._penalised(weights)).sum())
        return loss / self._total + penalty, self._gradient

    def _times_hessian(self, x: _Vector, direction: _Vector) -> _Vector:
        self._bend(x)
        change = self.weights(direction)
        product = self._parts.sum("times_hessian", change) / self._total + self._penalty * self._penalised(change)
        return self._varied(product)

    def _bend(self, x: _Vector) -> None:
        """Have the parts know the curvature at a point, once for all products there."""
        if self._bent is None or not np.array_equal(self._bent, x):
            self._parts.sum("bend", self.weights(x))
            self._bent = x.copy()

    def _penalised(self, weights: _Vector) -> _Vector:
        slopes = weights.copy()
        slopes[..., -1] = 0
        return slopes

    def _tell(self, intermediate_result: OptimizeResult) -> None:
        """Report an iteration."""
        self._steps += 1
        largest = float(np.abs(intermediate_result.get("jac", self._gradient)).max())
        self._parts.report({"iteration": self._steps, "loss": float(intermediate_result.fun), "gradient": largest})
