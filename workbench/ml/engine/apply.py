"""A fitted model that is applied to blocks; the scheduler that forwards it need not load the modules of the model."""

from __future__ import annotations

import pickle
from typing import Any

import cloudpickle
import numpy as np


class Applied:
    """A method of a model that is called with blocks.

    Parameters
    ----------
    model
        A fitted estimator.
    method
        Name of the method.
    empty
        The result of a block without rows; None: the result of the method.
    """

    def __init__(self, model: Any, method: str, empty: Any = None) -> None:
        self._model, self._method, self._empty = cloudpickle.dumps(model), method, empty
        self.__name__ = method

    def __call__(self, block: Any) -> Any:
        """Return the result of a block."""
        if self._empty is not None and not block.shape[0]:
            return self._empty
        return getattr(pickle.loads(self._model), self._method)(block)  # noqa: S301  (it comes from `__init__`)


class AppliedToNumbered(Applied):
    """A method of a model that is called with blocks and the numbers of their rows."""

    def __call__(self, block: Any, block_info: Any = None) -> Any:
        """Return the result of a block."""
        rows = np.arange(*block_info[0]["array-location"][0])
        return getattr(pickle.loads(self._model), self._method)(block, rows)  # noqa: S301  (as `Applied.__call__`)
