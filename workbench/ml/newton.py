"""Newton's method with conjugate gradients, for functions that are convex and dear to evaluate."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from scipy.optimize import OptimizeResult

_Vector = NDArray[np.float64]

# The decrease of the loss that a step has to bring, in parts of what its slope promises, and how often it is halved.
_DECREASE, _HALVINGS = 1e-4, 40
# What a step has to leave of the gradient where losses cannot tell: rounding makes it smaller too, but not by as much.
_SMALLER = 0.75
_EPS = float(np.finfo(np.float64).eps)


def newton(
    evaluate: Callable[[_Vector], tuple[float, _Vector]],
    times_hessian: Callable[[_Vector, _Vector], _Vector],
    x: _Vector,
    *,
    tol: float,
    eps: float,
    max_iter: int,
    tell: Callable[[OptimizeResult], None],
) -> OptimizeResult:
    """Return the minimum of a convex function.

    Parameters
    ----------
    evaluate
        Returns loss and gradient at a point.
    times_hessian
        Returns the product of the Hessian at a point and a direction.
    x
        Where to begin.
    tol
        It has converged where no component of the gradient is larger.
    eps
        The precision of losses and gradients, those of numbers of which they are computed.
    max_iter
        Steps at most.
    tell
        Is given ``x``, ``fun`` and ``jac``, point, loss and gradient, after each step.

    Returns
    -------
    OptimizeResult
        ``x``, ``nit``, ``success`` and ``message``.

    Notes
    -----
    Nocedal and Wright, Numerical Optimization (2006), algorithms 7.1 and 3.1. Near the minimum losses agree in all
    their digits; there a step is taken that makes the gradient
    smaller by a quarter.
    """
    from scipy.optimize import OptimizeResult

    loss, gradient = evaluate(x)
    steps, message = 0, ""
    while np.abs(gradient).max() > tol and not message:
        if steps == max_iter:
            message = "the iterations are used up"
            break
        step = _solve(times_hessian, x, gradient)
        slope, size = float(gradient @ step), np.abs(gradient).sum()
        for halving in range(_HALVINGS):
            length = 0.5**halving
            ahead = x + length * step
            there, pull = evaluate(ahead)
            flat = abs(there - loss) <= 64 * eps * abs(loss)
            if np.abs(pull).sum() <= _SMALLER * size if flat else there <= loss + _DECREASE * length * slope:
                x, loss, gradient, steps = ahead, there, pull, steps + 1
                tell(OptimizeResult(x=x, fun=loss, jac=gradient))
                break
        else:
            message = "no step makes the loss smaller: its digits are used up"
    return OptimizeResult(x=x, nit=steps, success=not message, message=message)


def _solve(times_hessian: Callable[[_Vector, _Vector], _Vector], x: _Vector, gradient: _Vector) -> _Vector:
    """Return the step to where the gradient vanishes, the nearer the smaller it is."""
    size = np.abs(gradient).sum()
    enough = min(0.5, float(np.sqrt(size))) * size
    step, left = np.zeros_like(x), -gradient
    direction, square = left, float(left @ left)
    for _ in range(20 * len(x)):
        if np.abs(left).sum() <= enough:
            break
        bent = times_hessian(x, direction)
        curvature = float(direction @ bent)
        if curvature <= 3 * _EPS * float(direction @ direction):
            # Flat, but for rounding: downhill, if there is no better way yet.
            return step if step.any() else direction
        share = square / curvature
        step, left = step + share * direction, left - share * bent
        before, square = square, float(left @ left)
        direction = left + square / before * direction
    return step
