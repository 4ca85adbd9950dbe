"""The computations of logistic regression on one block: loss, gradient and curvature."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import log_softmax

from workbench.ml.algebra.row_slices import Products
from workbench.ml.checks import FindsNonFinite, checked
from workbench.ml.labels import classes_of, codes_of

_Array = NDArray[Any]

# Bytes of a slice of rows that stays in the cache of a core while it is used twice, and its minimum number of rows.
_CACHED, _LEAST = 256 << 10, 256


class LogisticPart(FindsNonFinite):
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
        Number of the first row in all data.

    Notes
    -----
    The loss is that of scikit-learn, the weighted sum over rows: the binomial deviance for two classes, with weights of
    shape (features + 1,), and the multinomial deviance for more, with weights of shape (classes, features + 1). The
    last weight is the intercept, whose gradient is not used without `fit_intercept`. Work space: 8 bytes per row for
    the codes of the labels, 4 with more than two classes; 8 with row weights; 10 more while the labels are encoded;
    slices of 1 MiB; and for `curvature` 8 bytes times features² per pair of classes, one pair for two classes.
    """

    def __init__(self, X: Any, y: _Array, weight: _Array | None, start: int) -> None:
        self._X, self._y, self._weight = X, y, weight
        self._dtype = checked(X.dtype)
        self._rows = max(_LEAST, _CACHED // max(1, X.shape[1] * self._dtype.itemsize))
        self._codes: _Array = np.empty(0)

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """See `workbench.ml.engine.journaled_part.HasState.state`."""
        return {"codes": self._codes, "weight": self._weight}, {}

    def restore(self, rows: dict[str, Any], values: dict[str, Any], *, same: bool) -> None:
        """See `workbench.ml.engine.journaled_part.HasState.restore`."""
        self._codes, self._weight = rows.get("codes", self._codes), rows.get("weight", self._weight)

    def classes(self) -> _Array:
        """Return the sorted labels of the block."""
        return classes_of(self._y)

    def count(self, classes: _Array) -> _Array:
        """Return the weight of the rows of each label, shape (classes,)."""
        self._number(classes)
        return np.bincount(self._codes, self._weight, minlength=len(classes)).astype(np.float64)

    def encode(self, classes: _Array, weights: _Array | None) -> float:
        """Encode the labels as numbers, multiply row weights by class weights, and return the total weight."""
        self._number(classes)
        if weights is not None:
            row_weights = weights[self._codes].astype(np.float64, copy=False)
            if self._weight is not None:
                row_weights *= self._weight
            self._weight = row_weights
        if len(classes) == 2:
            self._codes = self._codes.astype(self._dtype)
        return float(len(self._y)) if self._weight is None else float(self._weight.sum(dtype=np.float64))

    def _number(self, classes: _Array) -> None:
        """Set the numbers of the labels."""
        if not len(self._codes):
            self._codes = codes_of(self._y, classes)

    @np.errstate(over="ignore", invalid="ignore")
    def loss_and_gradient(self, weights: _Array) -> tuple[float, _Array]:
        """Return the loss, and its gradient in the shape of the weights."""
        loss, gradient = 0.0, np.zeros(weights.shape)
        evaluate = _binomial if weights.ndim == 1 else _multinomial
        for X, codes, weight, scores in self._slices(weights):
            losses, derivatives = evaluate(scores, codes)
            if weight is not None:
                losses *= weight
                derivatives *= weight if weights.ndim == 1 else weight[:, None]
            loss += float(losses.sum(dtype=np.float64))
            _add_gradient(X, derivatives, gradient)
        self._search_once(gradient)
        return loss, gradient

    def _search_once(self, gradient: _Array) -> None:
        """Refuse rows that are not finite, after the first pass: each of their numbers makes a gradient not finite."""
        if not np.isfinite(gradient).all():
            self.refuse_non_finite()
        self._check = None

    @np.errstate(over="ignore", invalid="ignore")
    def curvature(self, weights: _Array) -> tuple[float, _Array, _Array]:
        """Return the loss, its gradient, and sums of products of rows for its second derivatives.

        Returns
        -------
        loss : float
        gradient : ndarray
            In the shape of the weights.
        packed : ndarray of shape (pairs, (features + 1) * (features + 2) / 2)
            For each pair of classes the sums of products of features and 1, in the format of
            `workbench.ml.algebra.row_slices.Products`. Pairs: (0, 1) for two classes, else (0, 0), (0, 1), ..., (1, 1),
            .... The weight of a row is the product of both probabilities, or p * (1 - p) for a class with itself. The
            caller changes the sign of other pairs.
        """
        loss, gradient, width = 0.0, np.zeros(weights.shape), weights.shape[-1]
        binary = weights.ndim == 1
        pairs = [(0, 1)] if binary else list(itertools.combinations_with_replacement(range(len(weights)), 2))
        products = [Products(width) for _ in pairs]
        for X, codes, weight, scores in self._slices(weights):
            losses, derivatives = (_binomial if binary else _multinomial)(scores, codes)
            loss += float((losses if weight is None else losses * weight).sum(dtype=np.float64))
            row_weights = np.ones(1) if weight is None else weight.astype(np.float64)
            weighted = derivatives * (row_weights if binary else row_weights[:, None])
            _add_gradient(X, weighted.astype(self._dtype), gradient)
            probabilities = _probabilities(derivatives, codes).astype(np.float64).reshape(len(losses), -1)
            rows = np.column_stack([X.toarray() if sparse.issparse(X) else X, np.ones(len(losses))])
            for (left, right), product in zip(pairs, products, strict=True):
                probability = probabilities[:, left]
                other = 1 - probability if binary or left == right else probabilities[:, right]
                factor = np.clip(probability * other, 0, None) * row_weights
                product.add(np.sqrt(factor)[:, None] * rows)
        self._search_once(gradient)
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
    """Return the losses, and their derivatives with respect to the scores."""
    # log(1 + exp(s)) - c s without overflow
    small = np.exp(-np.abs(scores))
    losses = np.log1p(small)
    losses += np.maximum(scores, 0)
    losses -= codes * scores
    derivatives = np.where(scores >= 0, 1, small)
    derivatives /= 1 + small
    derivatives -= codes
    return losses, derivatives


def _multinomial(scores: _Array, codes: _Array) -> tuple[_Array, _Array]:
    logs = log_softmax(scores, axis=1)
    rows = np.arange(len(codes))
    losses = -logs[rows, codes]
    derivatives = np.exp(logs)
    derivatives[rows, codes] -= 1
    return losses, derivatives


def _probabilities(derivatives: _Array, codes: _Array) -> _Array:
    """Convert derivatives of losses to probabilities, in place."""
    if derivatives.ndim == 1:
        derivatives += codes
    else:
        derivatives[np.arange(len(codes)), codes] += 1
    return derivatives


def _add_gradient(X: Any, derivatives: _Array, gradient: _Array) -> None:
    """Add the gradient of some rows, from the derivatives with respect to their scores."""
    gradient[..., :-1] += np.asarray(X.T @ derivatives).T
    gradient[..., -1] += derivatives.sum(axis=0, dtype=np.float64)
