"""The steps of a recipe: transformers of scikit-learn, and the statistics that they need."""

from __future__ import annotations

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

from workbench.ml.recipe.part import Column

_STRATEGIES = ("mean", "median", "most_frequent", "constant")

# Encoders of one column; None: numbers stay unchanged.
_ENCODERS = {StandardScaler, OneHotEncoder, KBinsDiscretizer, TargetEncoder, type(None)}
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


@dataclass(frozen=True)
class Chain(Column):
    """The transformation of one column, or of several columns with a stateless transformer."""

    imputer: Any = None
    """A `SimpleImputer`, or None."""
    encoder: Any = None
    """A transformer; None: numbers stay unchanged."""

    @property
    def name(self) -> str:
        """Name of the encoder, the prefix of columns that have the same name."""
        return "passthrough" if self.encoder is None else type(self.discretizer or self.encoder).__name__.lower()

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
    stateless = type(encoder) not in _ENCODERS and _discretizer(encoder) is None
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
    known = type(step) in _ENCODERS or isinstance(step, SimpleImputer | FrozenEstimator | PolynomialFeatures)
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
    if known:
        # scikit-learn does so in its fit, which a recipe makes after the pass over the rows.
        step._validate_params()


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
