"""The computations of a linear model on a block on a device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.ml.device_rows import DeviceProducts, DeviceRows
from workbench.ml.linear.part import LinearPart

_Array = NDArray[np.float64]


class DeviceLinearPart(LinearPart):
    """As `LinearPart`, with the rows on a device; the host computes QR decompositions."""

    def __init__(self, X: Any, y: NDArray[Any], weight: NDArray[Any] | None, start: int, *, device: str) -> None:
        super().__init__(X, y, weight, start)
        self._on = DeviceRows(X, device)

    def products(self, middle: _Array | None, target: _Array) -> tuple[float, _Array, _Array, _Array, _Array]:
        """See `LinearPart.products`."""
        on, xp, width = self._on, self._on.xp, self._on.shape[1]
        products, projection = DeviceProducts(on, width), on.zeros(width, len(target))
        weights, rows, targets = 0.0, on.zeros(width), on.zeros(len(target))
        for X, y, weight in self._on_device(middle, target):
            weighted = X * weight[:, None] if self._weight is not None else X
            products.add(X * xp.sqrt(weight)[:, None] if self._weight is not None else X)
            weights += float(xp.sum(weight))
            rows += weight @ X
            targets += weight @ y
            projection += xp.matrix_transpose(weighted) @ y
        sums = on.get(rows)
        if not np.isfinite(sums).all():
            self.refuse_non_finite()
        return weights, products.packed, on.get(projection), sums, on.get(targets)

    def pull(self, middle: _Array | None, target: _Array, coef: _Array) -> _Array:
        """See `LinearPart.pull`."""
        on, slope = self._on, self._on.put(coef, np.float64)
        pull = on.zeros(*coef.shape)
        for X, y, weight in self._on_device(middle, target):
            pull += on.xp.matrix_transpose(X) @ (weight[:, None] * (y - on.product(X, slope)))
        return on.get(pull)

    def _on_device(self, middle: _Array | None, target: _Array) -> Iterator[tuple[Any, Any, Any]]:
        """Yield rows and targets, minus their middles, and weights."""
        for part, X in self._on.slices(middle):
            weight = np.ones(X.shape[0]) if self._weight is None else self._weight[part]
            yield X, self._on.put(self._y[part] - target, np.float64), self._on.put(weight, np.float64)
