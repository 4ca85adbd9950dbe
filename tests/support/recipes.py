"""A table of flights, and recipes that are fitted on blocks of it in this process."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.preprocessing import OneHotEncoder, TargetEncoder

from workbench.ml.engine.parts import LocalParts
from workbench.ml.recipe.fitted import Columns, fitted
from workbench.ml.recipe.part import RecipeChecks, RecipePart, statistics

ROWS = 1501
RANDOM = np.random.default_rng(8)
FLIGHTS = pd.DataFrame(
    {
        "distance": np.where(RANDOM.random(ROWS) < 0.1, np.nan, RANDOM.gamma(2.0, 500.0, size=ROWS)),
        "hour": RANDOM.integers(0, 24, size=ROWS),
        "carrier": RANDOM.choice(np.array(["AA", "B6", "DL", "UA", np.nan], dtype=object), size=ROWS),
        "origin": RANDOM.choice(["EWR", "JFK", "LGA"], size=ROWS),
    }
)
DELAY = RANDOM.normal(size=ROWS) + FLIGHTS["hour"].to_numpy() / 6 + (FLIGHTS["carrier"] == "DL")
ONE_HOT = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
MEANS = TargetEncoder(target_type="continuous")
PARTS = pytest.mark.parametrize("parts", [1, 2, 5])


class CountedParts(LocalParts):
    """Parts that note the methods that are called on all of them."""

    def __init__(self, parts):
        super().__init__(parts)
        self.called = []

    def each(self, method, *args):
        self.called.append(method)
        return super().each(method, *args)


def in_parts(recipe, X, y, number, weight=None):
    """Return the columns of a recipe that is fitted on so many blocks."""
    cuts = np.linspace(0, len(X), number + 1).astype(int)
    recipe = clone(recipe).fit(X, y, weight)
    chains = [column.chain for column in recipe.columns_]
    _, y, _ = RecipeChecks("Recipe").apply(X, y, None)
    parts = [
        RecipePart(X[start:stop], *(each if each is None else each[start:stop] for each in (y, weight)), start)
        for start, stop in itertools.pairwise(cuts)
    ]
    return Columns(tuple(map(fitted, chains, statistics(LocalParts(parts), chains))))
