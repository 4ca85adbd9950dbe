"""The computations of a decomposition on a block on a device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.ml.algebra.sums import triangle
from workbench.ml.decomposition.part import DecompositionPart
from workbench.ml.device_rows import DeviceProducts, DeviceRows

_Array = NDArray[np.float64]
_Middle = _Array | None


class DeviceDecompositionPart(DecompositionPart):
    """As `DecompositionPart`, with the rows on a device; the host computes QR decompositions."""

    def __init__(self, X: Any, y: None, weight: None, start: int, *, device: str) -> None:
        super().__init__(X, y, weight, start)
        self._on = DeviceRows(X, device)

    def sums(self) -> _Array:
        """See `DecompositionPart.sums`."""
        on = self._on
        total = on.zeros(on.shape[1])
        for _, X in on.slices():
            total += on.xp.sum(X, axis=0)
        return self._finite(on.get(total))

    def squares(self, middle: _Middle) -> float:
        """See `DecompositionPart.squares`."""
        return sum(float(self._on.xp.sum(X * X)) for _, X in self._on.slices(middle))

    def gram(self, middle: _Middle) -> tuple[_Array, _Array]:
        """See `DecompositionPart.gram`."""
        on, width = self._on, self._on.shape[1]
        products, sums = DeviceProducts(on, width), on.zeros(width)
        for _, X in on.slices(middle):
            products.add(X)
            sums += on.xp.sum(X, axis=0)
        return products.packed, self._finite(on.get(sums))

    def normal(self, middle: _Middle, basis: _Array) -> _Array:
        """See `DecompositionPart.normal`."""
        total = self._on.zeros(*basis.shape[::-1])
        for X, product in self._times(middle, basis):
            total += self._on.xp.matrix_transpose(product) @ X
        return self._on.get(total).T

    def triangle(self, middle: _Middle, basis: _Array | None) -> _Array:
        """See `DecompositionPart.triangle`."""
        if basis is None:
            return super().triangle(middle, None)
        return triangle((self._on.get(product) for _, product in self._times(middle, basis)), basis.shape[1])

    def _times(self, middle: _Middle, basis: _Array) -> Iterator[tuple[Any, Any]]:
        vectors = self._on.put(basis, np.float64)
        for _, X in self._on.slices(middle, basis.shape[1]):
            yield X, self._on.product(X, vectors)
