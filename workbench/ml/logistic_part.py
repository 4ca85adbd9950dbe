"""What logistic regression computes on one block: loss, gradient and curvature at given weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_softmax

_Array = NDArray[Any]

# Bytes of a slice of rows that stays in the cache of a core while it is used twice, and its least number of rows.
_CACHED, _LEAST = 256 << 10, 256


class LogisticPart:
    """A block with its labels.

    Parameters
    ----------
    X
        Shape (rows, features): an array, or a matrix in CSR format.
    y
        Shape (rows,): the labels.
    weight
        Shape (rows,): weights of the rows; None: all 1.
    start
        Number of its first row in all of the data.

    Notes
    -----
    The loss is that of scikit-learn, summed over the rows with their weights: the binomial deviance of two classes, for
    weights of shape (features + 1,), the multinomial one of more, for weights of shape (classes, features + 1). The
    last weight is the intercept; without one its gradient is not used. Work space: 8 bytes per row for the codes of the
    labels, 4 of more than two classes, 8 for the weights if there are any, with Newton-CG 8 for each class; while the
    labels are taken in 10 bytes per row beside; and slices of a fixed size, 1 MiB.
    """

    def __init__(self, X: Any, y: _Array, weight: _Array | None, start: int) -> None:
        self._X, self._y, self._weight = X, y, weight
        width = X.shape[1]
        self._rows = max(_LEAST, _CACHED // max(1, width * X.dtype.itemsize))
        self._codes: _Array = np.empty(0)
        self._curvature: list[_Array] = []

    def classes(self) -> _Array:
        """Return the labels that there are, sorted."""
        if self._y.dtype != object:
            return np.unique(self._y)
        # Text is compared in Python: it is sorted once it is unique.
        import pandas as pd

        return np.unique(pd.unique(self._y))

    def count(self, classes: _Array) -> _Array:
        """Return how many rows have each label, weighted, shape (classes,)."""
        self._number(classes)
        return np.bincount(self._codes, self._weight, minlength=len(classes)).astype(np.float64)

    def encode(self, classes: _Array, weights: _Array | None) -> float:
        """Take the labels as numbers from now on, and the rows of each class with its weight; return all weight."""
        self._number(classes)
        if weights is not None:
            of_row = weights[self._codes].astype(np.float64, copy=False)
            if self._weight is not None:
                of_row *= self._weight
            self._weight = of_row
        if len(classes) == 2:
            self._codes = self._codes.astype(self._X.dtype)
        return float(len(self._y)) if self._weight is None else float(self._weight.sum(dtype=np.float64))

    def _number(self, classes: _Array) -> None:
        """Know the numbers of the labels."""
        if len(self._codes):
            return
        if self._y.dtype == object:
            import pandas as pd

            codes = pd.Index(classes).get_indexer(self._y)
        else:
            codes = np.searchsorted(classes, self._y)
        self._codes = codes.astype(np.int32)

    def loss_and_gradient(self, weights: _Array) -> tuple[float, _Array]:
        """Return the loss, and its gradient in the shape of the weights."""
        loss, gradient = 0.0, np.zeros(weights.shape)
        evaluate = _binomial if weights.ndim == 1 else _multinomial
        for X, codes, weight, scores in self._slices(weights):
            losses, pull = evaluate(scores, codes)
            if weight is not None:
                losses *= weight
                pull *= weight if weights.ndim == 1 else weight[:, None]
            loss += float(losses.sum(dtype=np.float64))
            _project(X, pull, gradient)
        return loss, gradient

    def bend(self, weights: _Array) -> float:
        """Get ready for `times_hessian` at these weights."""
        self._curvature = []
        for _, _, weight, scores in self._slices(weights):
            if weights.ndim == 1:
                chance = expit(scores)
                chance *= 1 - chance
                self._curvature.append(chance if weight is None else chance * weight)
            else:
                self._curvature.append(np.exp(log_softmax(scores, axis=1)))
        return 0.0

    def times_hessian(self, direction: _Array) -> _Array:
        """Return the product of the Hessian and a direction, in the shape of the weights."""
        product = np.zeros(direction.shape)
        for (X, _, weight, change), curvature in zip(self._slices(direction), self._curvature, strict=True):
            if direction.ndim == 1:
                pull = curvature * change
            else:
                pull = curvature * (change - (curvature * change).sum(axis=1, keepdims=True))
                if weight is not None:
                    pull *= weight[:, None]
            _project(X, pull, product)
        return product

    def _slices(self, weights: _Array) -> Iterator[tuple[Any, _Array, _Array | None, _Array]]:
        """Yield rows, their codes, weights and linear scores, shape (rows,) or (rows, classes)."""
        weights = weights.astype(self._X.dtype)
        slope, intercept = weights[..., :-1].T, weights[..., -1]
        for start in range(0, self._X.shape[0], self._rows):
            here = slice(start, start + self._rows)
            X, weight = self._X[here], None if self._weight is None else self._weight[here]
            yield X, self._codes[here], weight, np.asarray(X @ slope) + intercept


def _binomial(scores: _Array, codes: _Array) -> tuple[_Array, _Array]:
    """Return losses, and their derivatives by the scores."""
    # log(1 + exp(s)) - c s, without overflow
    small = np.exp(-np.abs(scores))
    losses = np.log1p(small)
    losses += np.maximum(scores, 0)
    losses -= codes * scores
    chance = np.where(scores >= 0, 1, small)
    chance /= 1 + small
    chance -= codes
    return losses, chance


def _multinomial(scores: _Array, codes: _Array) -> tuple[_Array, _Array]:
    logs = log_softmax(scores, axis=1)
    rows = np.arange(len(codes))
    losses = -logs[rows, codes]
    chances = np.exp(logs)
    chances[rows, codes] -= 1
    return losses, chances


def _project(X: Any, pull: _Array, gradient: _Array) -> None:
    """Add to a gradient what the pull on the scores of some rows does to the weights."""
    gradient[..., :-1] += np.asarray(X.T @ pull).T
    gradient[..., -1] += pull.sum(axis=0, dtype=np.float64)
