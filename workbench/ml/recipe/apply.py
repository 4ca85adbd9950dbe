"""A fitted recipe on its way to the blocks that a model is trained on, which have to know the numbers of their rows."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np

from workbench.ml.engine.apply import Applied


class Training(Applied):
    """`workbench.ml.recipe.fitted.Columns.transform` for rows of the fit."""

    def __call__(self, block: Any, block_info: Any = None) -> Any:
        """Return what the method returns of a block, and of the numbers of its rows."""
        start, stop = block_info[0]["array-location"][0]
        columns = pickle.loads(self._model)  # noqa: S301  (it comes from `Applied.__init__`)
        return getattr(columns, self._method)(block, np.arange(start, stop))
