"""Transformers of scikit-learn for one column, fitted from the statistics of the column instead of its rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from sklearn.base import clone
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, TargetEncoder

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from sklearn.preprocessing import KBinsDiscretizer, StandardScaler

    _Array = NDArray[Any]


def imputer(step: SimpleImputer, fill: Any, *, is_numeric: bool) -> SimpleImputer:
    """Return an imputer with a value."""
    if is_numeric:
        # With each strategy the statistic of one number is that number.
        return clone(step).fit(np.array([[fill]], dtype=np.float64))
    return SimpleImputer(strategy="constant", fill_value=fill).fit(objects([fill]))


def without_names() -> FunctionTransformer:
    """Return a step that converts the output of an imputer to arrays for an encoder that was fitted without names."""
    return _to_array(np.asarray)


def exact(encoder: Any) -> FunctionTransformer | None:
    """Return a step that keeps integers of a dataframe exact; None for an encoder without large integers.

    scikit-learn converts nullable integers to floats, which would merge categories.
    """
    categories = encoder.categories_[0].tolist() if isinstance(encoder, OneHotEncoder | TargetEncoder) else []
    is_large = any(isinstance(value, int) and abs(value) >= 2**53 for value in categories)
    return _to_array(pd.DataFrame.to_numpy, dtype=object, na_value=np.nan) if is_large else None


def _to_array(function: Callable[..., Any], **options: Any) -> FunctionTransformer:
    step = FunctionTransformer(function, kw_args=options, feature_names_out="one-to-one").fit(np.zeros((1, 1)))
    # Without this `set_output` of the pipeline would wrap the array again.
    step._sklearn_auto_wrap_output_keys = set()
    return step


def scaler(step: StandardScaler, rows: float, mean: float, variance: float, scale: float) -> StandardScaler:
    """Return a scaler with these moments."""
    fitted = clone(step).fit(np.zeros((1, 1)))
    fitted.n_samples_seen_ = rows
    if fitted.mean_ is not None:
        fitted.mean_ = np.array([mean])
    if fitted.with_std:
        fitted.var_, fitted.scale_ = np.array([variance]), np.array([scale])
    return fitted


def discretizer(step: KBinsDiscretizer, edges: _Array) -> KBinsDiscretizer:
    """Return a discretizer with these edges, including the outer ones; fewer than three edges make one bucket."""
    buckets = max(len(edges) - 1, 1)
    fitted = clone(step).set_params(n_bins=max(buckets, 2), strategy="uniform")
    with warnings.catch_warnings():
        # scikit-learn warns of one bucket, which a column with one number has.
        warnings.simplefilter("ignore", UserWarning)
        fitted.fit(np.array([[0.0], [float(buckets > 1)]]))
    if len(edges) > 1:
        fitted.bin_edges_ = np.array([edges, None], dtype=object)[:1]
    return fitted.set_params(**step.get_params())


def indicators(step: OneHotEncoder, categories: Sequence[Any]) -> OneHotEncoder:
    """Return an encoder with these categories."""
    return _categorical(clone(step).fit(_numbers(categories)), categories)


def means(step: TargetEncoder, categories: Sequence[Any], tables: _Array, classes: _Array | None) -> TargetEncoder:
    """Return an encoder with these categories and their means.

    Parameters
    ----------
    step
        The encoder with the parameters.
    categories
        The categories.
    tables
        Shape (columns, categories + 1): the means for each column of the result; the last is the mean for unknown
        categories.
    classes
        The sorted labels of the target; None for numbers. Several columns without a label for each are numbered.
    """
    fitted = clone(step).set_params(target_type="continuous").fit(np.zeros((1, 1)), [0.0])
    fitted.set_params(target_type=step.target_type)
    fitted.encodings_, fitted.target_mean_ = list(tables[:, :-1]), tables[0, -1]
    if classes is not None:
        fitted.target_type_, fitted.classes_ = "binary", classes
    if len(tables) > 1:
        fitted.target_type_, fitted.target_mean_ = "multiclass", tables[:, -1]
        if classes is None or len(classes) != len(tables):
            fitted.classes_ = np.arange(len(tables))
    return _categorical(fitted, categories)


def objects(values: Sequence[Any]) -> _Array:
    """Return values of any type as a column."""
    column = np.empty((len(values), 1), dtype=object)
    column[:, 0] = values
    return column


def _numbers(categories: Sequence[Any]) -> _Array:
    """Return a number per category: a fit of scikit-learn compares categories, whose types may not be comparable."""
    return np.arange(len(categories))[:, None]


def _categorical(encoder: Any, categories: Sequence[Any]) -> Any:
    # scikit-learn looks up numbers in an array of numbers, and other values in an array of objects.
    types = set(map(type, categories))
    if types == {int, float} and all(value % 1 == 0 for value in categories) and max(map(abs, categories)) >= 2**53:
        # Of nullable integers only small ones are floats (`categories_of`).
        categories, types = list(map(int, categories)), {int}
    is_uniform = types in ({int}, {float}, {np.float32}, {np.float32, float})
    dtype = np.float32 if np.float32 in types else None
    encoder.categories_ = [np.array(categories, dtype) if is_uniform else objects(categories)[:, 0]]
    return encoder
