"""Columns of a recipe that is fitted: plain numbers, and what they make of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from workbench.ml.algebra import moments
from workbench.ml.recipe.encoders import Buckets, Encoded, Encoder, Indicators, Linear, Means, dense, scarce
from workbench.ml.recipe.part import numbers_of, take
from workbench.ml.recipe.statistics import Amounts, Groups, Spread, Statistics
from workbench.ml.recipe.steps import Bucketise, Chain, Impute, OneHot, Scale, TargetMean
from workbench.ml.scaler.estimator import _is_constant as is_constant

_Array = NDArray[Any]


@dataclass(frozen=True)
class FittedColumn:
    """What is done with one column."""

    chain: Chain
    fill: Any
    """What comes in place of what is missing; None if that stays."""
    encoder: Encoder

    def apply(self, X: Any, rows: _Array | None) -> Encoded:
        """Return what comes of the column."""
        values: Any = take(X, self.chain.position)
        if self.chain.is_numeric:
            values = numbers_of(values, self.chain.label)
            if self.fill is not None:
                values = np.where(np.isnan(values), self.fill, values)
        elif self.fill is not None:
            values = values.astype(object).where(values.notna(), self.fill)
        return self.encoder.encode(values, rows)


@dataclass(frozen=True)
class Columns:
    """All columns of a recipe."""

    columns: tuple[FittedColumn, ...]

    @property
    def widths(self) -> list[int]:
        """How many columns come of each."""
        return [len(column.encoder.names("")) for column in self.columns]

    @property
    def empty(self) -> Any:
        """What comes of no rows: a matrix in CSR format if one of the steps wants that, else an array."""
        wanted = any(
            isinstance(column.chain.encoding, OneHot) and column.chain.encoding.sparse_output for column in self.columns
        )
        return sparse.csr_array((0, sum(self.widths))) if wanted else np.empty((0, sum(self.widths)))

    def transform(self, X: Any, rows: _Array | None = None) -> Any:
        """Return rows in numbers; if `rows` has their numbers, as a model is to be trained on them."""
        together = scarce if sparse.issparse(self.empty) else dense
        return together((column.apply(X, rows) for column in self.columns), self.widths, len(X))


def fitted(chain: Chain, statistics: Statistics) -> FittedColumn:
    """Return what is done with a column whose statistics are known."""
    fill = _fill(chain.impute, statistics)
    if fill is not None:
        statistics = tuple(each and each.filled(fill) for each in statistics)  # type: ignore[assignment]
    return FittedColumn(chain, fill, _encoder(chain, *statistics))


def _fill(impute: Impute | None, statistics: Statistics) -> Any:
    amounts, spread, groups = statistics
    if impute is None:
        return None
    if impute.strategy == "constant":
        return impute.fill_value
    if impute.strategy == "mean":
        return amounts.mean if amounts else 0.0
    if impute.strategy == "median":
        return float(spread.quantiles(np.array([0.5]))[0]) if spread and len(spread.points) else 0.0
    if groups is None or not groups.categories:
        return 0.0
    groups = groups.sorted()
    return groups.categories[int(groups.rows[:-1].argmax())]


def _encoder(chain: Chain, amounts: Amounts | None, spread: Spread | None, groups: Groups | None) -> Encoder:
    encoding = chain.encoding
    if isinstance(encoding, Scale) and amounts:
        return _linear(encoding, amounts)
    if isinstance(encoding, Bucketise):
        return _buckets(encoding, spread)
    if isinstance(encoding, OneHot) and groups:
        groups = groups.sorted()
        return Indicators(groups.categories, groups.missing)
    if isinstance(encoding, TargetMean) and groups:
        return _means(encoding, groups.sorted())
    return Linear()


def _linear(encoding: Scale, amounts: Amounts) -> Linear:
    variance = amounts.squares / (amounts.rows or 1.0)
    constant = bool(is_constant(np.array(amounts.rows), np.array(amounts.mean), np.array(variance)))
    return Linear(
        amounts.mean if encoding.with_mean else 0.0,
        1.0 if constant or not encoding.with_std else float(np.sqrt(variance)),
    )


def _buckets(encoding: Bucketise, spread: Spread | None) -> Buckets:
    if encoding.edges is not None or spread is None:
        edges = np.asarray(encoding.edges, dtype=np.float64)
    elif len(spread.points):
        edges = spread.quantiles(np.linspace(0, 100, encoding.buckets + 1) / 100)
        # Those between which there is nothing are one.
        edges = edges[np.diff(edges, prepend=-np.inf) > 1e-8]
    else:
        edges = np.empty(0)
    return Buckets(edges[1:-1], encoding.one_hot)


def _means(encoding: TargetMean, groups: Groups) -> Means:
    folds = [tuple(each[fold] for each in groups.target) for fold in range(encoding.folds)]
    sets = [[other for other in range(encoding.folds) if other != fold] for fold in range(encoding.folds)]
    table = []
    for members in [*sets, list(range(encoding.folds))]:
        found: Any = folds[members[0]]
        for member in members[1:]:
            found = moments.join(found, folds[member])
        table.append(_drawn(encoding.smooth, *found))
    return Means(groups.categories, np.array(table))


def _drawn(smooth: float | str, rows: _Array, mean: _Array, squares: _Array) -> _Array:
    """Return the means of categories drawn towards that of all rows, and at last that one.

    Notes
    -----
    Micci-Barreca, SIGKDD Explorations 3 (2001), equations 3 to 6, as scikit-learn's ``TargetEncoder``.
    """
    total = rows.sum() or 1.0
    overall = rows @ mean / total
    if smooth == "auto":
        variance = (squares.sum() + rows @ np.square(mean - overall)) / total
        within = squares / np.where(rows > 0, rows, 1.0)
        weight, other = variance * rows, within
    else:
        weight, other = rows, np.full(len(rows), float(smooth))
    share = np.divide(weight, weight + other, out=np.zeros(len(rows)), where=(weight + other > 0) & (rows > 0))
    return np.append(share * mean + (1 - share) * overall, overall)
