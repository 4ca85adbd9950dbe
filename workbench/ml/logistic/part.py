"""What logistic regression computes on one block: loss, gradient and curvature at given weights."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import log_softmax

from workbench.ml.algebra.row_slices import Products
from workbench.ml.checks import checked

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
    labels, 4 of more than two classes, 8 for the weights if there are any; while the labels are taken in 10 bytes per
    row beside; slices of a fixed size, 1 MiB; and for `curvature` 8 bytes times the square of the number of features
    for each pair of classes, one for two classes.
    """

    def __init__(self, X: Any, y: _Array, weight: _Array | None, start: int) -> None:
        self._X, self._y, self._weight = X, y, weight
        self._dtype = checked(X.dtype)
        self._rows = max(_LEAST, _CACHED // max(1, X.shape[1] * self._dtype.itemsize))
        self._codes: _Array = np.empty(0)

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
            self._codes = self._codes.astype(self._dtype)
        return float(len(self._y)) if self._weight is None else float(self._weight.sum(dtype=np.float64))

    def _number(self, classes: _Array) -> None:
        """Know the numbers of the labels."""
        if len(self._codes):
            return
        if self._y.dtype == object:
            import pandas as pd

            codes = pd.Index(classes).get_indexer(pd.Index(self._y))
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

    def curvature(self, weights: _Array) -> tuple[float, _Array, _Array]:
        """Return the loss, its gradient, and sums of products of rows, which its second derivatives are made of.

        Returns
        -------
        loss : float
        gradient : ndarray
            In the shape of the weights.
        packed : ndarray of shape (pairs, (features + 1) * (features + 2) / 2)
            For each pair of classes the products of features and 1, each row with the product of the chances of the
            two, packed as by `workbench.ml.algebra.row_slices.Products`: (0, 1) for two classes, else (0, 0), (0, 1),
            ..., (1, 1), .... A class with itself has the chance times 1 less the chance, the others are to be
            subtracted.
        """
        loss, gradient, width = 0.0, np.zeros(weights.shape), weights.shape[-1]
        binary = weights.ndim == 1
        pairs = [(0, 1)] if binary else list(itertools.combinations_with_replacement(range(len(weights)), 2))
        products = [Products(width) for _ in pairs]
        for X, codes, weight, scores in self._slices(weights):
            losses, chances = (_binomial if binary else _multinomial)(scores, codes)
            loss += float((losses if weight is None else losses * weight).sum(dtype=np.float64))
            of_row = np.ones(1) if weight is None else weight.astype(np.float64)
            pull = chances * (of_row if binary else of_row[:, None])
            _project(X, pull.astype(self._dtype), gradient)
            _restore(chances, codes)
            chances = chances.astype(np.float64).reshape(len(losses), -1)
            rows = np.column_stack([X.toarray() if sparse.issparse(X) else X, np.ones(len(losses))])
            for (left, right), product in zip(pairs, products, strict=True):
                share = chances[:, left] * (1 - chances[:, left] if binary or left == right else chances[:, right])
                product.add(np.sqrt(np.clip(share, 0, None) * of_row)[:, None] * rows)
        return loss, gradient, np.stack([product.packed for product in products])

    def _slices(self, weights: _Array) -> Iterator[tuple[Any, _Array, _Array | None, _Array]]:
        """Yield rows, their codes, weights and linear scores, shape (rows,) or (rows, classes)."""
        weights = weights.astype(self._dtype)
        slope, intercept = weights[..., :-1].T, weights[..., -1]
        for start in range(0, self._X.shape[0], self._rows):
            part = slice(start, start + self._rows)
            X, weight = (
                self._X[part].astype(self._dtype, copy=False),
                None if self._weight is None else self._weight[part],
            )
            yield X, self._codes[part], weight, np.asarray(X @ slope) + intercept


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


def _restore(derivatives: _Array, codes: _Array) -> None:
    """Make chances of the derivatives of losses by the scores, in their place."""
    if derivatives.ndim == 1:
        derivatives += codes
    else:
        derivatives[np.arange(len(codes)), codes] += 1


def _project(X: Any, pull: _Array, gradient: _Array) -> None:
    """Add to a gradient what the pull on the scores of some rows does to the weights."""
    gradient[..., :-1] += np.asarray(X.T @ pull).T
    gradient[..., -1] += pull.sum(axis=0, dtype=np.float64)
