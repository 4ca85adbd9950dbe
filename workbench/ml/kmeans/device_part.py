"""The computations of K-means on a block on a device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.ml.device_rows import DeviceRows
from workbench.ml.kmeans.part import KMeansPart

_Array = NDArray[Any]


class DeviceKMeansPart(KMeansPart):
    """As `KMeansPart`, with the rows on a device. The labels, and random numbers of rows, are on the host."""

    def __init__(self, X: Any, y: None, weight: _Array | None, start: int, *, device: str) -> None:
        super().__init__(X, y, weight, start)
        self._on = DeviceRows(X, device)

    def _floats(self, rows: Any) -> Any:
        """Return rows of the device in the dtype of the computation."""
        return self._on.xp.astype(rows, self._on.put(np.empty(0, self._dtype)).dtype, copy=False)

    def _scored(self, centers: _Array) -> Iterator[tuple[slice, _Array, _Array, Any, _Array]]:
        on, xp = self._on, self._on.xp
        middle = None if self._middle is None else on.put(self._middle, self._dtype)
        if self._middle is not None:
            centers = centers - self._middle
        factors, norms = on.put(2 * centers, self._dtype), on.put(np.square(centers).sum(axis=1)[:, None], np.float64)
        # As on the host: the number of the center replaces the last bits of the score.
        low = (1 << (len(centers) - 1).bit_length()) - 1
        numbers = on.put(np.arange(len(centers))[:, None])
        for part in on.parts(len(centers)):
            rows = self._floats(on[part])
            X = rows if middle is None else rows - middle
            scores = on.floats(factors @ xp.matrix_transpose(X))
            scores -= norms
            bits = scores.view(xp.int64)
            bits &= ~low
            bits |= numbers
            best = xp.max(scores, axis=0)
            yield part, on.get(best.view(xp.int64) & low), on.get(best), X, centers

    def _apart(self, rows: Any, best: _Array, labels: _Array, centers: _Array) -> _Array:
        differences = rows - self._on.xp.take(self._on.put(centers, self._dtype), self._on.put(labels), axis=0)
        return self._on.get(self._on.xp.sum(differences * differences, axis=1))

    def _totals(
        self,
        labels: _Array,
        changed: _Array | None,
        clusters: int,
        before: _Array | None = None,
        *,
        gather: bool = False,
    ) -> tuple[_Array, _Array, _Array]:
        on, xp = self._on, self._on.xp
        sums, counts, members = on.zeros(clusters, on.shape[1]), on.zeros(clusters), on.zeros(clusters)
        numbers = on.put(np.arange(clusters, dtype=labels.dtype)[:, None])
        if gather:
            self._sum, self._squares, self._weighted = np.zeros(on.shape[1]), 0.0, 0.0
        part: Any
        for part in on.parts(clusters) if changed is None else self._split(changed, clusters):
            rows = on[part]
            if gather:
                self._gather(part, rows)
            belongs = on.floats(numbers == on.put(labels[part]))
            if before is not None:
                belongs = belongs - on.floats(numbers == on.put(before[part]))
            weighted = belongs
            if self._weight is not None:
                weight = on.put(self._weight[part], np.float64)
                weighted, positive = belongs * weight, on.floats(weight > 0)
                members += belongs @ positive
            sums += weighted @ on.floats(rows)
            counts += xp.sum(weighted, axis=1)
        result = on.get(counts)
        return on.get(sums), result, result.copy() if self._weight is None else on.get(members)

    def _split(self, changed: _Array, clusters: int) -> Iterator[_Array]:
        at_once = next(self._on.parts(clusters)).stop
        for start in range(0, len(changed), at_once):
            yield changed[start : start + at_once]

    def _gather(self, part: slice, X: Any) -> None:
        on, xp = self._on, self._on.xp
        apart = on.floats(X) if self._middle is None else on.floats(X) - on.put(self._middle, np.float64)
        self._sum = self._sum + on.get(xp.sum(apart, axis=0))
        norms = on.get(xp.sum(apart * apart, axis=1))
        self._squares += float(norms.sum())
        self._weighted += self._weighed(part, norms)

    def _squared_distances(self, centers: _Array) -> Iterator[tuple[slice, _Array]]:
        for part in self._on.parts():
            yield part, self._apart(self._floats(self._on[part]), np.empty(0), self._label(part), centers)
