"""Newton's method for convex functions whose evaluation is expensive."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from scipy.optimize import OptimizeResult

_Vector = NDArray[np.float64]

# Minimum decrease of the loss in a step, as a fraction of the decrease that the slope predicts, and maximum halvings.
_DECREASE, _HALVINGS = 1e-4, 40
# Maximum fraction of the gradient after a step, for losses that differ by rounding only.
_SMALLER = 0.75
# Losses that differ by less than the first multiple of their precision are equal. Losses that differ by less than the
# second may be equal, because scores may be sums of numbers that are much larger.
_FLAT, _CLOSE = 64, 1 << 14


def newton(
    evaluate: Callable[[_Vector], tuple[float, _Vector, Callable[[], _Vector]]],
    x: _Vector,
    *,
    tol: float,
    eps: float,
    max_iter: int,
    report: Callable[[OptimizeResult], None],
) -> OptimizeResult:
    """Return the minimum of a convex function.

    Parameters
    ----------
    evaluate
        Returns the loss and the gradient at a point, and a function that returns the Newton step at this point.
    x
        First point.
    tol
        Convergence: the largest absolute component of the gradient.
    eps
        Precision of the numbers from which losses and gradients are computed.
    max_iter
        Maximum number of steps.
    report
        Receives ``x``, ``fun`` and ``jac`` (point, loss and gradient) after each step.

    Returns
    -------
    OptimizeResult
        ``x``, ``nit``, ``success`` and ``message``.

    Notes
    -----
    Nocedal and Wright, Numerical Optimization (2006), algorithms 3.2 and 3.1. Near the minimum losses agree in all
    digits. A step that makes the gradient smaller by a quarter is valid there.
    """
    from scipy.optimize import OptimizeResult

    loss, gradient, newton_step = evaluate(x)
    steps, message = 0, ""
    while np.abs(gradient).max() > tol and not message:
        if steps == max_iter:
            message = "max_iter was reached"
            break
        step = newton_step()
        slope, size = float(gradient @ step), np.abs(gradient).sum()
        for halving in range(_HALVINGS):
            length = 0.5**halving
            next_loss, next_gradient, next_step = evaluate(x + length * step)
            difference, smaller = abs(next_loss - loss), np.abs(next_gradient).sum() <= _SMALLER * size
            lower = difference > _FLAT * eps * abs(loss) and next_loss <= loss + _DECREASE * length * slope
            if lower or (smaller and difference <= _CLOSE * eps * abs(loss)):
                x, loss, gradient, newton_step = x + length * step, next_loss, next_gradient, next_step
                steps += 1
                report(OptimizeResult(x=x, fun=loss, jac=gradient))
                break
        else:
            message = "no step makes the loss smaller by more than its rounding error"
    return OptimizeResult(x=x, nit=steps, success=not message, message=message)
