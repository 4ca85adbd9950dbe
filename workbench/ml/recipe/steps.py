"""The steps of a recipe: transformers of scikit-learn, short names for some, and the statistics that they need."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any

import numpy as np
import pandas as pd
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import KBinsDiscretizer, OneHotEncoder, PolynomialFeatures, StandardScaler, TargetEncoder

from workbench.ml.recipe.encoders import discretizer
from workbench.ml.recipe.part import Column

_STRATEGIES = ("mean", "median", "most_frequent", "constant")

# Names of encoders, as prefixes of columns with the same name.
_NAMES = {
    StandardScaler: "scale",
    OneHotEncoder: "onehot",
    KBinsDiscretizer: "bucketize",
    TargetEncoder: "targetmean",
    type(None): "keep",
}
# Parameters that are valid with their default values only, and other values with the same meaning.
_ONLY: dict[type, dict[str, tuple[Any, ...]]] = {
    SimpleImputer: {"missing_values": (None, pd.NA), "add_indicator": ()},
    OneHotEncoder: {
        "categories": (),
        "drop": ("first", "if_binary"),
        "dtype": (float,),
        "max_categories": (),
        "min_frequency": (),
    },
    KBinsDiscretizer: {
        "dtype": (np.float64,),
        "quantile_method": ("averaged_inverted_cdf", "warn"),
        "random_state": (),
        "strategy": (),
    },
    TargetEncoder: {"categories": (), "random_state": (None,), "target_type": ("continuous", "binary", "multiclass")},
}


def Impute(strategy: str = "mean", fill_value: Any = None) -> Any:  # noqa: N802  (named like the classes of steps)
    """Replace missing values; valid before another step of the same columns, or alone.

    Parameters
    ----------
    strategy : {"mean", "median", "most_frequent", "constant"}, default="mean"
        The replacement. The median is exact if each block has at most 8192 different numbers; otherwise its position is
        wrong by at most 1/16384 of all rows. Of several most frequent values the smallest is used. A column without any
        number is filled with 0.
    fill_value : number or str, default=None
        The value for ``"constant"``.

    Returns
    -------
    sklearn.impute.SimpleImputer
        A step.

    Raises
    ------
    ValueError
        If the strategy is not valid, or the constant is missing.
    """
    if strategy not in _STRATEGIES:
        raise ValueError(f"Impute(strategy={strategy!r}) is not valid. Choose one of {', '.join(_STRATEGIES)}.")
    if strategy == "constant" and fill_value is None:
        raise ValueError('Impute("constant") needs a constant. Pass fill_value.')
    return SimpleImputer(strategy=strategy, fill_value=fill_value)


def Keep() -> str:  # noqa: N802  (as `Impute`)
    """Keep numbers unchanged.

    Returns
    -------
    str
        The step ``"passthrough"`` of scikit-learn.
    """
    return "passthrough"


def Scale(*, with_mean: bool = True, with_std: bool = True) -> Any:  # noqa: N802  (as `Impute`)
    """Scale numbers to mean 0 and variance 1, like `workbench.ml.StandardScaler`; missing numbers stay missing.

    Parameters
    ----------
    with_mean : bool, default=True
        Whether the mean is subtracted.
    with_std : bool, default=True
        Whether numbers are divided by their standard deviation.

    Returns
    -------
    sklearn.preprocessing.StandardScaler
        A step.
    """
    return StandardScaler(with_mean=with_mean, with_std=with_std)


def OneHot(*, sparse_output: bool = False) -> Any:  # noqa: N802  (as `Impute`)
    """Return a column of zeros and ones per category; missing values are a category if the fit has any.

    A category that did not occur in the fit becomes all zeros.

    Parameters
    ----------
    sparse_output : bool, default=False
        Whether the recipe returns a matrix in CSR format; one step with this parameter applies to all columns.

    Returns
    -------
    sklearn.preprocessing.OneHotEncoder
        A step.
    """
    return OneHotEncoder(handle_unknown="ignore", sparse_output=sparse_output)


def Bucketize(  # noqa: N802  (as `Impute`)
    buckets: int = 5, edges: Sequence[float] | None = None, *, one_hot: bool = False
) -> Any:
    """Replace numbers by the numbers of their buckets, from 0.

    Missing numbers stay missing; with `one_hot` they become all zeros.

    Parameters
    ----------
    buckets : int, default=5
        Number of quantile buckets, with equal numbers of rows as far as equal values allow this. The quantiles have the
        precision of the median of `Impute`.
    edges : sequence of float, default=None
        The edges in place of quantiles, including the outer ones. Numbers outside are in the first or last bucket.
    one_hot : bool, default=False
        Whether to return a column of zeros and ones per bucket.

    Returns
    -------
    sklearn.preprocessing.KBinsDiscretizer or sklearn.frozen.FrozenEstimator
        A step; with `edges` a fitted discretizer.

    Raises
    ------
    ValueError
        If the number of buckets is less than two, or the edges are not in ascending order.
    """
    if buckets < 2:
        raise ValueError(f"Bucketize(buckets={buckets}) is not valid. Choose at least 2 buckets.")
    step = KBinsDiscretizer(buckets, encode="onehot-dense" if one_hot else "ordinal")
    if edges is None:
        return step
    if len(edges) < 3 or any(right <= left for left, right in itertools.pairwise(edges)):
        raise ValueError(f"Bucketize(edges={list(edges)}) is not valid. Pass at least 3 numbers in ascending order.")
    return FrozenEstimator(discretizer(step, np.asarray(edges, dtype=np.float64)))


def TargetMean(folds: int = 5, smooth: float | str = "auto") -> Any:  # noqa: N802  (as `Impute`)
    """Replace categories by the mean target of their rows, shrunk towards the mean of all rows.

    Training rows (`Recipe.fit_transform`) get the means of the other folds, which do not include their own target. The
    fold of a row depends on the number of the row, and not on the number of ranks. A category that did not occur in the
    fit becomes the mean of all rows. The target must be numbers; ``TargetEncoder()`` of scikit-learn is the step for
    labels of several classes.

    Parameters
    ----------
    folds : int, default=5
        Number of folds.
    smooth : float or "auto", default="auto"
        Weight of the mean of all rows, as a number of rows per category; ``"auto"``: from the variances (empirical
        Bayes).

    Returns
    -------
    sklearn.preprocessing.TargetEncoder
        A step.

    Raises
    ------
    ValueError
        If the number of folds is less than two, or `smooth` is not valid.
    """
    if folds < 2:
        raise ValueError(f"TargetMean(folds={folds}) is not valid. Choose at least 2 folds.")
    if smooth != "auto" and (isinstance(smooth, str) or smooth < 0):
        raise ValueError(f'TargetMean(smooth={smooth!r}) is not valid. Choose a number of at least 0, or "auto".')
    return TargetEncoder(target_type="continuous", smooth=smooth, cv=folds)


@dataclass(frozen=True)
class Chain(Column):
    """The transformation of one column, or of several columns with a stateless transformer."""

    imputer: Any = None
    """A `SimpleImputer`, or None."""
    encoder: Any = None
    """A transformer; None: numbers stay unchanged."""

    @property
    def name(self) -> str:
        """Name of the encoder."""
        return _NAMES.get(type(self.discretizer or self.encoder), type(self.encoder).__name__.lower())

    @property
    def discretizer(self) -> Any:
        """The discretizer of the encoder; None without buckets."""
        return _discretizer(self.encoder)

    def column(self) -> Column:
        """Return the part of the chain for the ranks."""
        return Column(**{field.name: getattr(self, field.name) for field in fields(Column)})


def chains(positions: Sequence[int], labels: Sequence[Any], steps: Any, *, is_series: bool = False) -> list[Chain]:
    """Return the transformations of columns of a table.

    Parameters
    ----------
    positions
        Numbers of the columns.
    labels
        Names of all columns.
    steps
        A step, or a list or pipeline of steps.
    is_series
        Whether the user has named one column alone, and not in a list.

    Raises
    ------
    TypeError, ValueError
        If a step, or the order of the steps, is not valid.
    """
    remaining = [step for _, step in steps.steps] if isinstance(steps, Pipeline) else steps
    remaining = list(remaining) if isinstance(remaining, list | tuple) else [remaining]
    for step in remaining:
        _check(step)
    imputer = remaining.pop(0) if remaining and isinstance(remaining[0], SimpleImputer) else None
    encoder = remaining.pop(0) if remaining else "passthrough"
    encoder = None if isinstance(encoder, str) else encoder
    stateless = type(encoder) not in _NAMES and _discretizer(encoder) is None
    if remaining or isinstance(encoder, SimpleImputer) or (imputer and stateless):
        raise ValueError(
            f"{steps!r} cannot follow each other. Pass one step per column, or an imputer before a step with a fit. "
            "Use a pipeline for steps before or after the recipe."
        )
    if not positions:
        return []
    if stateless:
        return [
            Chain(
                positions[0],
                labels[positions[0]],
                positions=tuple(positions),
                is_series=is_series,
                encoder=encoder,
            )
        ]
    return [_chain(position, labels[position], imputer, encoder) for position in positions]


def _chain(position: int, label: Any, imputer: Any, encoder: Any) -> Chain:
    """Return the transformation of one column."""
    strategy = imputer and imputer.strategy
    is_numeric = encoder is None or isinstance(encoder, StandardScaler) or _discretizer(encoder) is not None
    filling = strategy == "constant" and imputer.fill_value is not None
    if filling and is_numeric and not isinstance(imputer.fill_value, Real):
        raise ValueError(f"{imputer!r} fills the numbers of column {label!r}. Pass a number for fill_value.")
    categories = isinstance(encoder, OneHotEncoder) or strategy == "most_frequent"
    return Chain(
        position,
        label,
        is_numeric=is_numeric,
        moments=isinstance(encoder, StandardScaler) or strategy == "mean",
        quantiles=isinstance(encoder, KBinsDiscretizer) or strategy == "median",
        folds=encoder.cv if isinstance(encoder, TargetEncoder) else int(categories),
        target=encoder.target_type if isinstance(encoder, TargetEncoder) else "",
        imputer=imputer,
        encoder=encoder,
    )


def _check(step: Any) -> None:
    """Raise TypeError if this is not a step, ValueError if one of its parameters has no meaning here."""
    known = type(step) in _NAMES or isinstance(step, SimpleImputer | FrozenEstimator | PolynomialFeatures)
    if step is None or isinstance(step, type) or not (known or step == "passthrough" or _is_stateless(step)):
        raise TypeError(
            f"{step!r} is not a step of a recipe. Pass a transformer of scikit-learn (not of workbench.ml): "
            "SimpleImputer(), StandardScaler(), OneHotEncoder(), KBinsDiscretizer(), TargetEncoder(), or one without a "
            "fit, for example FunctionTransformer(); or 'passthrough'."
        )
    for name, equivalents in _ONLY.get(type(step), {}).items():
        current, valid = getattr(step, name, None), [type(step)().get_params().get(name), *equivalents]
        if not any(_is_same(current, value) for value in valid):
            raise ValueError(
                f"{step!r}: {name}={current!r} has no meaning in a recipe. Valid values: {', '.join(map(repr, valid))}."
            )
    if isinstance(step, SimpleImputer) and step.strategy not in _STRATEGIES:
        raise ValueError(f"{step!r}: strategy must be one of {', '.join(_STRATEGIES)}.")
    size = getattr(step, "n_bins", 2) if isinstance(step, KBinsDiscretizer) else getattr(step, "cv", 2)
    if not isinstance(size, Integral) or size < 2:
        raise ValueError(f"{step!r}: n_bins and cv must be integers of at least 2 in a recipe.")


def _is_same(left: Any, right: Any) -> bool:
    if left is right:
        return True
    # A NaN from another process is a different object.
    return type(left) is type(right) and bool(left == right or (left != left and right != right))  # noqa: PLR0124


def _discretizer(encoder: Any) -> Any:
    """Return the encoder if it is a discretizer, or the frozen discretizer of one column; else None."""
    if not isinstance(encoder, FrozenEstimator):
        return encoder if isinstance(encoder, KBinsDiscretizer) else None
    frozen = encoder.estimator
    has_one_column = getattr(frozen, "n_features_in_", 0) == 1 and not hasattr(frozen, "feature_names_in_")
    return frozen if isinstance(frozen, KBinsDiscretizer) and has_one_column else None


def _is_stateless(step: Any) -> bool:
    tags = getattr(step, "__sklearn_tags__", None)
    return hasattr(step, "transform") and tags is not None and not tags().requires_fit
