"""Newton's method for functions that are convex and dear to evaluate."""

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
# Losses that differ by less, in multiples of their precision, are the same; those that differ by less than the second
# may be, where scores are sums of numbers that are large beside them.
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
        Returns at a point the loss, the gradient, and what returns the step to where the gradient vanishes, if the
        curvature is everywhere as at this point.
    x
        Where to begin.
    tol
        It has converged where no component of the gradient is larger.
    eps
        The precision of losses and gradients, those of numbers of which they are computed.
    max_iter
        Steps at most.
    tell
        Receives ``x``, ``fun`` and ``jac``, point, loss and gradient, after each step.

    Returns
    -------
    OptimizeResult
        ``x``, ``nit``, ``success`` and ``message``.

    Notes
    -----
    Nocedal and Wright, Numerical Optimization (2006), algorithms 3.2 and 3.1. Near the minimum losses agree in all
    their digits; there a step is taken that makes the gradient smaller by a quarter.
    """
    from scipy.optimize import OptimizeResult

    loss, gradient, ahead = evaluate(x)
    steps, message = 0, ""
    while np.abs(gradient).max() > tol and not message:
        if steps == max_iter:
            message = "the iterations are used up"
            break
        step = ahead()
        slope, size = float(gradient @ step), np.abs(gradient).sum()
        for halving in range(_HALVINGS):
            length = 0.5**halving
            next_value, pull, onward = evaluate(x + length * step)
            difference, smaller = abs(next_value - loss), np.abs(pull).sum() <= _SMALLER * size
            lower = difference > _FLAT * eps * abs(loss) and next_value <= loss + _DECREASE * length * slope
            if lower or (smaller and difference <= _CLOSE * eps * abs(loss)):
                x, loss, gradient, ahead, steps = x + length * step, next_value, pull, onward, steps + 1
                report(OptimizeResult(x=x, fun=loss, jac=gradient))
                break
        else:
            message = "no step makes the loss smaller: its digits are used up"
    return OptimizeResult(x=x, nit=steps, success=not message, message=message)
