"""The computations of logistic regression on a block on a device."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.ml.device_rows import DeviceProducts, DeviceRows
from workbench.ml.logistic.part import LogisticPart

_Array = NDArray[Any]


class DeviceLogisticPart(LogisticPart):
    """As `LogisticPart`, with the rows on a device and all numbers in float64; the host encodes the labels."""

    def __init__(self, X: Any, y: _Array, weight: _Array | None, start: int, *, device: str) -> None:
        super().__init__(X, y, weight, start)
        self._on = DeviceRows(X, device)

    def loss_and_gradient(self, weights: _Array) -> tuple[float, _Array]:
        """See `LogisticPart.loss_and_gradient`."""
        loss, gradient = 0.0, self._on.zeros(*weights.shape)
        for X, weight, losses, derivatives, _ in self._evaluated(weights):
            loss += self._add(X, weight, losses, derivatives, gradient)
        return loss, self._on.get(gradient)

    def curvature(self, weights: _Array) -> tuple[float, _Array, _Array]:
        """See `LogisticPart.curvature`."""
        on, xp = self._on, self._on.xp
        loss, gradient, binary = 0.0, on.zeros(*weights.shape), weights.ndim == 1
        pairs = [(0, 1)] if binary else list(itertools.combinations_with_replacement(range(len(weights)), 2))
        products = [DeviceProducts(on, weights.shape[-1]) for _ in pairs]
        for X, weight, losses, derivatives, probabilities in self._evaluated(weights):
            loss += self._add(X, weight, losses, derivatives, gradient)
            rows = xp.concat([X, xp.ones_like(X[:, :1])], axis=1)
            for (left, right), product in zip(pairs, products, strict=True):
                own = probabilities if binary else probabilities[:, left]
                other = 1 - own if binary or left == right else probabilities[:, right]
                factor = xp.clip(own * other, 0, None)
                product.add(xp.sqrt(factor if weight is None else factor * weight)[:, None] * rows)
        return loss, on.get(gradient), np.stack([product.packed for product in products])

    def _evaluated(self, weights: _Array) -> Iterator[tuple[Any, Any, Any, Any, Any]]:
        """Yield rows, their weights and losses, the derivatives of the losses by the scores, and the probabilities."""
        on, xp, binary = self._on, self._on.xp, weights.ndim == 1
        slope, intercept = on.put(weights[..., :-1].T.copy(), np.float64), on.put(weights[..., -1].copy(), np.float64)
        classes = on.put(np.arange(1 if binary else len(weights)))
        for part, X in on.slices(None, 1 if binary else len(weights)):
            scores = on.product(X, slope)
            scores += intercept
            codes = on.put(self._codes[part], np.float64 if binary else np.int64)
            weight = None if self._weight is None else on.put(self._weight[part], np.float64)
            if binary:
                # log(1 + exp(s)) - c s without overflow
                small = xp.exp(-xp.abs(scores))
                losses = xp.log1p(small)
                losses += xp.clip(scores, 0, None)
                losses -= codes * scores
                # 1 / (1 + exp(-s)), by its symmetry about 1/2
                small += 1
                probabilities = xp.sign(scores)
                probabilities *= 1 / small - 0.5
                probabilities += 0.5
                yield X, weight, losses, probabilities - codes, probabilities
                continue
            scores -= xp.max(scores, axis=1, keepdims=True)
            exponentials = xp.exp(scores)
            sums = xp.sum(exponentials, axis=1, keepdims=True)
            chosen = on.floats(codes[:, None] == classes)
            probabilities = exponentials / sums
            losses = xp.log(sums)[:, 0] - xp.sum(chosen * scores, axis=1)
            yield X, weight, losses, probabilities - chosen, probabilities

    def _add(self, X: Any, weight: Any, losses: Any, derivatives: Any, gradient: Any) -> float:
        """Return the loss of some rows, and add their gradient, from the derivatives with respect to their scores."""
        xp = self._on.xp
        if weight is not None:
            losses = losses * weight
            derivatives = derivatives * (weight if derivatives.ndim == 1 else weight[:, None])
        gradient[..., :-1] += xp.matrix_transpose(derivatives) @ X if derivatives.ndim > 1 else derivatives @ X
        gradient[..., -1] += xp.sum(derivatives, axis=0)
        return float(xp.sum(losses))
