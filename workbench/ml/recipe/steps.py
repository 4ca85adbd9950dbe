"""The steps of a recipe: transformers of scikit-learn, short names for some of them, and what each needs."""

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

# What an encoder is called where two give columns of one name.
_NAMES = {
    StandardScaler: "scale",
    OneHotEncoder: "onehot",
    KBinsDiscretizer: "bucketise",
    TargetEncoder: "targetmean",
    type(None): "keep",
}
# Parameters that have no meaning here but by their default values, and other values that are the same.
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
    TargetEncoder: {"categories": (), "random_state": (None,), "target_type": ("continuous", "binary")},
}


def Impute(strategy: str = "mean", fill_value: Any = None) -> Any:  # noqa: N802  (named like the classes of steps)
    """Fill in what is missing; comes before another step of the same columns, or stands alone.

    Parameters
    ----------
    strategy : {"mean", "median", "most_frequent", "constant"}, default="mean"
        What is filled in. The median is that of the numbers where each block has at most 8192 different ones; otherwise
        a number whose rank is at most 1/16384 of all rows away. Of several that are most frequent the smallest. A
        column without any number is filled with 0.
    fill_value : number or str, default=None
        The constant.

    Returns
    -------
    sklearn.impute.SimpleImputer
        A step.

    Raises
    ------
    ValueError
        If the strategy is another, or a constant is not given.
    """
    if strategy not in _STRATEGIES:
        raise ValueError(f"Impute(strategy={strategy!r}): must be one of {', '.join(_STRATEGIES)}")
    if strategy == "constant" and fill_value is None:
        raise ValueError('Impute("constant") needs to know the constant: pass fill_value')
    return SimpleImputer(strategy=strategy, fill_value=fill_value)


def Keep() -> str:  # noqa: N802  (as `Impute`)
    """Take numbers as they are.

    Returns
    -------
    str
        The step ``"passthrough"`` of scikit-learn.
    """
    return "passthrough"


def Scale(*, with_mean: bool = True, with_std: bool = True) -> Any:  # noqa: N802  (as `Impute`)
    """Scale numbers to mean 0 and variance 1, as `workbench.ml.StandardScaler`; missing ones do not count, and stay.

    Parameters
    ----------
    with_mean : bool, default=True
        Whether the mean is taken away.
    with_std : bool, default=True
        Whether numbers are divided by their standard deviation.

    Returns
    -------
    sklearn.preprocessing.StandardScaler
        A step.
    """
    return StandardScaler(with_mean=with_mean, with_std=with_std)


def OneHot(*, sparse_output: bool = False) -> Any:  # noqa: N802  (as `Impute`)
    """Make a column of zeros and ones of each category; what is missing is a category, if it is missing in the fit.

    A category that was not there in the fit is all zeros.

    Parameters
    ----------
    sparse_output : bool, default=False
        Whether the recipe returns rows as a matrix in CSR format: all columns, if one step wants it.

    Returns
    -------
    sklearn.preprocessing.OneHotEncoder
        A step.
    """
    return OneHotEncoder(handle_unknown="ignore", sparse_output=sparse_output)


def Bucketise(  # noqa: N802  (as `Impute`)
    buckets: int = 5, edges: Sequence[float] | None = None, *, one_hot: bool = False
) -> Any:
    """Replace numbers by the number of the bucket that they are in, the first is 0.

    Missing ones stay missing; with `one_hot` they are all zeros.

    Parameters
    ----------
    buckets : int, default=5
        How many, of as many rows each, as far as different numbers allow it. The quantiles are as exact as a median.
    edges : sequence of float, default=None
        The edges, the outer ones included, in place of quantiles. What lies outside is in the first or last bucket.
    one_hot : bool, default=False
        Whether each bucket gets a column of zeros and ones.

    Returns
    -------
    sklearn.preprocessing.KBinsDiscretizer or sklearn.frozen.FrozenEstimator
        A step; with `edges` a discretizer that is fitted.

    Raises
    ------
    ValueError
        If there are less than two buckets, or the edges do not ascend.
    """
    if buckets < 2:
        raise ValueError(f"Bucketise(buckets={buckets}): must be at least 2")
    step = KBinsDiscretizer(buckets, encode="onehot-dense" if one_hot else "ordinal")
    if edges is None:
        return step
    if len(edges) < 3 or any(right <= left for left, right in itertools.pairwise(edges)):
        raise ValueError(f"Bucketise(edges={list(edges)}): must be at least 3 numbers in ascending order")
    return FrozenEstimator(discretizer(step, np.asarray(edges, dtype=np.float64)))


def TargetMean(folds: int = 5, smooth: float | str = "auto") -> Any:  # noqa: N802  (as `Impute`)
    """Replace categories by the mean of the target among their rows, drawn towards the mean of all rows.

    Rows that a model is trained on (`Recipe.fit_transform`) get means of the other folds, so that their own target is
    not in them. The fold of a row is drawn by its number, so that the number of ranks changes nothing. A category that
    was not there in the fit is the mean of all rows.

    Parameters
    ----------
    folds : int, default=5
        Into how many the rows are split.
    smooth : float or "auto", default="auto"
        As many rows of the mean of all are counted to each category; ``"auto"``: by the variances (empirical Bayes).

    Returns
    -------
    sklearn.preprocessing.TargetEncoder
        A step.

    Raises
    ------
    ValueError
        If there are less than two folds, or the smoothing is negative or another word.
    """
    if folds < 2:
        raise ValueError(f"TargetMean(folds={folds}): must be at least 2")
    if smooth != "auto" and (isinstance(smooth, str) or smooth < 0):
        raise ValueError(f'TargetMean(smooth={smooth!r}): must be a number of at least 0, or "auto"')
    return TargetEncoder(target_type="continuous", smooth=smooth, cv=folds)


@dataclass(frozen=True)
class Chain(Column):
    """What is done with one column, or with several columns by a stateless transformer."""

    imputer: Any = None
    """A `SimpleImputer`, or None."""
    encoder: Any = None
    """A transformer; None for numbers that stay as they are."""

    @property
    def name(self) -> str:
        """What the encoder is called."""
        return _NAMES.get(type(self.discretizer or self.encoder), type(self.encoder).__name__.lower())

    @property
    def discretizer(self) -> Any:
        """What has buckets, or None."""
        return _discretizer(self.encoder)

    def column(self) -> Column:
        """Return what a rank needs of it."""
        return Column(**{field.name: getattr(self, field.name) for field in fields(Column)})


def chains(positions: Sequence[int], labels: Sequence[Any], steps: Any) -> list[Chain]:
    """Return what is done with columns of a table.

    Raises
    ------
    TypeError, ValueError
        If these are no steps, or cannot follow each other.
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
            f"{steps!r} cannot follow each other: a column has one step, and may have an imputer before a step that "
            "learns something of each column; put others before or behind the recipe, in a pipeline"
        )
    if not positions:
        return []
    if stateless:
        return [Chain(positions[0], labels[positions[0]], positions=tuple(positions), encoder=encoder)]
    return [_chain(position, labels[position], imputer, encoder) for position in positions]


def _chain(position: int, label: Any, imputer: Any, encoder: Any) -> Chain:
    """Return what is done with one column."""
    strategy = imputer and imputer.strategy
    is_numeric = encoder is None or isinstance(encoder, StandardScaler) or _discretizer(encoder) is not None
    filling = strategy == "constant" and imputer.fill_value is not None
    if filling and is_numeric and not isinstance(imputer.fill_value, Real):
        raise ValueError(f"{imputer!r} fills numbers of column {label!r}: fill_value must be one")
    categories = isinstance(encoder, OneHotEncoder) or strategy == "most_frequent"
    return Chain(
        position,
        label,
        is_numeric=is_numeric,
        moments=isinstance(encoder, StandardScaler) or strategy == "mean",
        quantiles=isinstance(encoder, KBinsDiscretizer) or strategy == "median",
        folds=encoder.cv if isinstance(encoder, TargetEncoder) else int(categories),
        imputer=imputer,
        encoder=encoder,
    )


def _check(step: Any) -> None:
    """Raise TypeError if this is no step, ValueError if one of its parameters has no meaning here."""
    known = type(step) in _NAMES or isinstance(step, SimpleImputer | FrozenEstimator | PolynomialFeatures)
    if step is None or isinstance(step, type) or not (known or step == "passthrough" or _is_stateless(step)):
        raise TypeError(
            f"{step!r} is no step of a recipe: pass SimpleImputer(), StandardScaler(), OneHotEncoder(), "
            "KBinsDiscretizer(), TargetEncoder(), 'passthrough' or a transformer that learns nothing, such as "
            "FunctionTransformer(), each of scikit-learn, not of workbench.ml"
        )
    for name, equivalents in _ONLY.get(type(step), {}).items():
        given, valid = getattr(step, name, None), [type(step)().get_params().get(name), *equivalents]
        if not any(_is_same(given, value) for value in valid):
            raise ValueError(f"{step!r}: {name} has no meaning in a recipe; valid: {', '.join(map(repr, valid))}")
    if isinstance(step, SimpleImputer) and step.strategy not in _STRATEGIES:
        raise ValueError(f"{step!r}: strategy must be one of {', '.join(_STRATEGIES)}")
    size = getattr(step, "n_bins", 2) if isinstance(step, KBinsDiscretizer) else getattr(step, "cv", 2)
    if not isinstance(size, Integral) or size < 2:
        raise ValueError(f"{step!r}: n_bins and cv must be one number of at least 2 in a recipe")


def _is_same(left: Any, right: Any) -> bool:
    if left is right:
        return True
    # A NaN that was sent to another process is another object.
    return type(left) is type(right) and bool(left == right or (left != left and right != right))  # noqa: PLR0124


def _discretizer(encoder: Any) -> Any:
    """Return the discretizer that this is, or that of one column that is frozen here; None if there is none."""
    if not isinstance(encoder, FrozenEstimator):
        return encoder if isinstance(encoder, KBinsDiscretizer) else None
    frozen = encoder.estimator
    of_one = getattr(frozen, "n_features_in_", 0) == 1 and not hasattr(frozen, "feature_names_in_")
    return frozen if isinstance(frozen, KBinsDiscretizer) and of_one else None


def _is_stateless(step: Any) -> bool:
    tags = getattr(step, "__sklearn_tags__", None)
    return hasattr(step, "transform") and tags is not None and not tags().requires_fit
