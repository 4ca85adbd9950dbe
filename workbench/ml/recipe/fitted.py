"""The columns of a fitted recipe: transformers of scikit-learn, and their application to blocks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse
from sklearn import config_context
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, KBinsDiscretizer, OneHotEncoder, StandardScaler, TargetEncoder

from workbench.ml.algebra import sums
from workbench.ml.recipe import encoders
from workbench.ml.recipe.data import fold_of
from workbench.ml.recipe.part import numbers_of, take
from workbench.ml.recipe.statistics import Amounts, Groups, Spread, Statistics, categories_of
from workbench.ml.recipe.steps import Chain
from workbench.ml.scaler.estimator import _is_constant as is_constant
from workbench.text import count

_Array = NDArray[Any]

_CHUNK = 1 << 18
"""Maximum number of values in a result of a step."""


@dataclass(frozen=True)
class FittedColumn:
    """The fitted transformation of one column, or of several columns with a stateless transformer."""

    chain: Chain
    transformer: Any
    """A fitted transformer of scikit-learn, for an array of this column."""
    of_folds: Any
    """For target means: a transformer that returns for each fold, with the means of the other folds, the columns of
    `transformer`; else None."""
    row: Any
    """A valid row."""
    empty: Any
    """The result for no rows."""

    def names(self, names: Sequence[str]) -> list[str]:
        """Return the names of the columns of the result, from the names of all columns of the table."""
        input_names = [names[position] for position in self.chain.positions or (self.chain.position,)]
        if hasattr(self.transformer, "get_feature_names_out"):
            return list(self.transformer.get_feature_names_out(input_names))
        return [f"{self.chain.name}{number}" for number in range(self.empty.shape[1])]

    def reader(self, X: Any, rows: _Array | None) -> Callable[[slice], Any]:
        """Return a function from a range of the rows of a block to their result."""
        chain = self.chain
        if chain.positions:
            read: Callable[[slice], Any] = _rows_of(chain, self.transformer, chain.of_table(X), self.empty).__getitem__
            return read
        values = take(X, chain.position)
        if chain.is_numeric:
            numbers = numbers_of(values, chain.label)
            return lambda part: self._of_numbers(numbers[part])
        # A category is transformed once, however many rows have it. All missing values have code -1.
        codes, categories = categories_of(values)
        if any(isinstance(category, tuple) for category in categories):
            raise ValueError(
                f"column {chain.label!r} has tuples, which encoders of scikit-learn read as several columns. Convert "
                "the tuples to text first, for example with map(str)."
            )
        table = encoders.objects([*categories.tolist(), *[np.nan] * bool((codes < 0).any())])
        if rows is None or self.of_folds is None:
            results = self.transformer.transform(table)
            return lambda part: results[codes[part]]
        means = self.of_folds.transform(table).reshape(len(table), -1, self.empty.shape[1])
        fold = fold_of(rows, means.shape[1])
        return lambda part: means[codes[part], fold[part]]

    def _of_numbers(self, numbers: _Array) -> Any:
        missing = np.isnan(numbers)
        if self.chain.discretizer is None or self.chain.imputer is not None or not missing.any():
            return self.transformer.transform(numbers[:, None])
        # A discretizer of scikit-learn refuses missing values.
        result = self.transformer.transform(np.where(missing, 0.0, numbers)[:, None])
        if sparse.issparse(result):
            # Each row has one stored value.
            result.data[missing] = 0
        else:
            result[missing] = np.nan if self.chain.discretizer.encode == "ordinal" else 0
        return result


@dataclass(frozen=True)
class Columns:
    """All columns of a recipe."""

    columns: tuple[FittedColumn, ...]

    @property
    def empty(self) -> Any:
        """The result of no rows: a matrix in CSR format if a step returns sparse rows, else an array."""
        empty = [column.empty for column in self.columns]
        shape = 0, sum(each.shape[1] for each in empty)
        return sparse.csr_array(shape) if any(map(sparse.issparse, empty)) else np.empty(shape)

    def transform(self, X: Any, rows: _Array | None = None) -> Any:
        """Return the result of a block; with the numbers of its rows, the result that a model is trained on."""
        # The recipe itself follows the output format that is set for all transformers of this process.
        with config_context(transform_output="default"):
            empty = self.empty
            if not len(X):
                return empty
            if sparse.issparse(empty):
                results = [sparse.csr_array(column.reader(X, rows)(slice(None))) for column in self.columns]
                joined = sparse.csr_array(sparse.hstack(results, format="csr", dtype=np.float64))
                joined.eliminate_zeros()
                return joined
            dense, start = np.empty((len(X), empty.shape[1])), 0
            for column in self.columns:
                read, width = column.reader(X, rows), column.empty.shape[1]
                # In ranges of rows: the whole result of a step would take the memory of the recipe's result once more.
                size = _CHUNK // max(width, 1) + 1
                for begin in range(0, len(X), size):
                    part = slice(begin, begin + size)
                    dense[part, start : start + width] = read(part)
                start += width
            return dense

    def of_scikit_learn(self, names: Sequence[str] | None, features: int, *, unique: bool) -> ColumnTransformer:
        """Return the columns as a fitted transformer of scikit-learn.

        Parameters
        ----------
        names
            Names of the columns of a table; None for arrays.
        features
            Number of columns of a table.
        unique
            Whether the names of the results are unique without the names of the steps.
        """
        row: list[Any] = [0.0] * features
        entries = []
        for number, column in enumerate(self.columns):
            positions = list(column.chain.positions or (column.chain.position,))
            transformer = copy.deepcopy(column.transformer)
            if isinstance(transformer, Pipeline):
                transformer.steps.insert(1, ("array", encoders.without_names()))
            last = transformer[-1] if isinstance(transformer, Pipeline) else transformer
            if names is not None and (step := encoders.exact(last)) is not None:
                transformer = make_pipeline(step, transformer)
            if names is not None and not column.chain.positions:
                first = transformer[0] if isinstance(transformer, Pipeline) else transformer
                first.feature_names_in_ = np.array([names[position] for position in positions], dtype=object)
            for position, value in zip(positions, np.asarray(column.row, dtype=object).ravel(), strict=True):
                row[position] = value
            chosen: Any = positions if names is None else [names[position] for position in positions]
            if column.chain.is_series:
                [chosen] = chosen
            entries.append((f"{column.chain.name}-{number}", FrozenEstimator(transformer), chosen))
        table = ColumnTransformer(entries, sparse_threshold=1.0, verbose_feature_names_out=not unique)
        sample = pd.DataFrame([row], columns=None if names is None else list(names))
        with config_context(transform_output="default"):
            table.fit(sample.to_numpy() if names is None else sample)
            table.sparse_output_ = sparse.issparse(self.empty)
        return table


def fitted(chain: Chain, statistics: Statistics) -> FittedColumn:
    """Return the fitted column from its statistics."""
    if statistics.sample is not None:
        return _stateless(chain, statistics.sample.row)
    steps, row = [], np.zeros((1, 1))
    if chain.imputer is not None:
        fill = _fill(chain, statistics)
        steps = [encoders.imputer(chain.imputer, fill, is_numeric=chain.is_numeric)]
        statistics = statistics.filled(fill)
    groups = statistics.groups
    if groups is not None and not chain.is_numeric:
        groups = groups.sorted()
        row = encoders.objects([*groups.categories, np.nan][:1])
    fitted_encoders = _encoders(chain, statistics.amounts, statistics.spread, groups)
    return _fitted(chain, row, *(make_pipeline(*steps, encoder) if steps else encoder for encoder in fitted_encoders))


def _fitted(chain: Chain, row: Any, transformer: Any, of_folds: Any = None) -> FittedColumn:
    with config_context(transform_output="default"):
        empty = _rows_of(chain, transformer, row)[:0]
    return FittedColumn(chain, transformer, of_folds, row, empty)


def _rows_of(chain: Chain, transformer: Any, values: Any, like: Any = None) -> Any:
    """Return the result for columns of a table: an array or a sparse matrix.

    Raises
    ------
    ValueError
        If the result has not a row for each row, or not as many columns as an earlier result `like`.
    """
    result = transformer.transform(values)
    result = result if sparse.issparse(result) else np.asarray(result)
    width = result.shape[1:] if like is None else like.shape[1:]
    if result.ndim != 2 or result.shape != (len(values), *width):
        columns = "" if like is None else f" and {count(width[0], 'column')}"
        raise ValueError(
            f"the step {chain.encoder!r} returned an array of shape {result.shape} for {count(len(values), 'row')} of "
            f"column {chain.label!r}. A step must return one row for each row{columns}. {_other_kind(chain)}"
        )
    return result


def _other_kind(chain: Chain) -> str:
    """Return how a stateless transformer receives another kind of data."""
    if chain.is_series:
        return f"The column is a series, because the recipe names it alone. Pass [{chain.label!r}] for a table."
    return (
        f"The columns are a table, because the recipe has a list. Pass {chain.label!r} alone for a series, as for text."
    )


def _stateless(chain: Chain, row: Any) -> FittedColumn:
    is_frozen = isinstance(chain.encoder, FrozenEstimator)
    try:
        column = _fitted(chain, row, chain.encoder if is_frozen else clone(chain.encoder).fit(row))
    except ValueError as error:
        if chain.is_series and str(error).startswith("Expected"):
            raise ValueError(f"the step {chain.encoder!r} needs a table. {_other_kind(chain)}") from error
        raise
    has_names = is_frozen or hasattr(column.transformer, "get_feature_names_out")
    if not has_names and column.empty.shape[1] == len(chain.positions):
        column.transformer.feature_names_out = "one-to-one"
    return column


def _fill(chain: Chain, statistics: Statistics) -> Any:
    amounts, spread, groups, _ = statistics
    strategy = chain.imputer.strategy
    if strategy == "constant":
        values = groups.categories if groups else ()
        has_numbers = chain.is_numeric or (len(values) and all(isinstance(value, Real) for value in values))
        default = 0.0 if has_numbers else "missing_value"
        return default if chain.imputer.fill_value is None else chain.imputer.fill_value
    if strategy == "mean":
        return amounts.mean if amounts else 0.0
    if strategy == "median":
        return float(spread.quantiles(np.array([0.5]))[0]) if spread and len(spread.points) else 0.0
    if groups is None or not len(groups.categories):
        return 0.0
    groups = groups.sorted()
    return groups.categories[int(groups.rows[:-1].argmax())]


def _encoders(chain: Chain, amounts: Amounts | None, spread: Spread | None, groups: Groups | None) -> list[Any]:
    """Return the encoder of a column; for target means also the encoder of the folds."""
    step = chain.encoder
    if isinstance(step, StandardScaler) and amounts:
        return [_scaler(step, amounts)]
    if chain.discretizer is not None:
        return [_discretizer(step, spread)]
    if isinstance(step, OneHotEncoder) and groups:
        return [encoders.indicators(step, [*groups.categories, *[np.nan] * groups.missing])]
    if isinstance(step, TargetEncoder) and groups:
        return _means(step, groups)
    return [FunctionTransformer(feature_names_out="one-to-one").fit(np.zeros((1, 1)))]


def _scaler(step: StandardScaler, amounts: Amounts) -> StandardScaler:
    variance = amounts.squares / (amounts.rows or 1.0)
    constant = bool(is_constant(np.array(amounts.rows), np.array(amounts.mean), np.array(variance)))
    return encoders.scaler(step, amounts.rows, amounts.mean, variance, 1.0 if constant else float(np.sqrt(variance)))


def _discretizer(step: Any, spread: Spread | None) -> KBinsDiscretizer:
    if isinstance(step, FrozenEstimator) or spread is None:
        return getattr(step, "estimator", step)
    return encoders.discretizer(step, _edges(step.n_bins, spread))


def _edges(buckets: int, spread: Spread) -> _Array:
    if not len(spread.points):
        return np.empty(0)
    edges = spread.quantiles(np.linspace(0, 100, buckets + 1) / 100)
    # Equal edges have an empty bucket between them.
    return edges[np.diff(edges, prepend=-np.inf) > 1e-8]


def _means(step: TargetEncoder, groups: Groups) -> list[TargetEncoder]:
    """Return the encoder of all rows, and the encoder of the folds with the means of the other folds."""
    rows, mean, squares = groups.target
    folds = [(rows[fold], mean[:, fold], squares[:, fold]) for fold in range(step.cv)]
    sets = [[other for other in range(step.cv) if other != fold] for fold in range(step.cv)]
    tables = []
    for members in [*sets, list(range(step.cv))]:
        joined: Any = folds[members[0]]
        for member in members[1:]:
            joined = sums.join(joined, folds[member])
        table = _shrunk(step.smooth, *joined)
        # The mean before the last is that of missing values, which are a category if the fit has any.
        tables.append(table if groups.missing else np.delete(table, -2, axis=1))
    categories = [*groups.categories, *[np.nan] * groups.missing]
    return [
        encoders.means(step, categories, selected, groups.classes)
        for selected in (tables[-1], np.concatenate(tables[:-1]))
    ]


def _shrunk(smooth: float | str, rows: _Array, mean: _Array, squares: _Array) -> _Array:
    """Return the means of categories, shrunk towards the mean of all rows, and that mean at the end, for each target.

    Notes
    -----
    Micci-Barreca, SIGKDD Explorations 3 (2001), equations 3 to 6, like ``TargetEncoder`` of scikit-learn.
    """
    total = rows.sum() or 1.0
    overall = (mean @ rows / total)[:, None]
    if smooth == "auto":
        variance = (squares.sum(axis=1) + np.square(mean - overall) @ rows)[:, None] / total
        within = squares / np.where(rows > 0, rows, 1.0)
        weight, other = variance * rows, within
    else:
        weight, other = rows, np.full(len(rows), float(smooth))
    share = np.divide(weight, weight + other, out=np.zeros(mean.shape), where=(weight + other > 0) & (rows > 0))
    return np.hstack([share * mean + (1 - share) * overall, overall])
