"""The computations of scaling on a block on a device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from workbench.ml.algebra.sums import Moments
from workbench.ml.device_rows import DeviceRows
from workbench.ml.scaler.part import ScalerPart


class DeviceScalerPart(ScalerPart):
    """As `ScalerPart`, with the rows on a device."""

    def __init__(self, X: Any, y: None, weight: Any, start: int, *, device: str) -> None:
        super().__init__(X, y, weight, start)
        self._on = DeviceRows(X, device)

    def _slices(self) -> Iterator[Moments]:
        on, xp = self._on, self._on.xp
        for part, X in on.slices():
            weight = on.put(np.ones(X.shape[0]) if self._weight is None else self._weight[part], np.float64)
            rows = on.zeros(X.shape[1]) + xp.sum(weight)
            totals = weight @ X
            missing = None
            if bool(xp.any(xp.isnan(totals))):
                missing = xp.isnan(X)
                rows = weight @ on.floats(~missing)
                totals = weight @ xp.where(missing, xp.zeros_like(X), X)
            safe = xp.where(rows > 0, rows, xp.ones_like(rows))
            mean = totals / safe
            deviations = on.less(X, mean)
            if missing is not None:
                deviations[missing] = 0.0
            # The rounding error of the mean counts if the mean is much larger than the deviations.
            error = weight @ deviations / safe
            deviations *= deviations
            squares = on.get(weight @ deviations - error * error * rows)
            yield on.get(rows), on.get(mean + error), np.maximum(squares, 0.0)
