"""Transformers of scikit-learn for one column, fitted by what is known of the column rather than by its rows."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import clone
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import FunctionTransformer

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from sklearn.preprocessing import KBinsDiscretizer, OneHotEncoder, StandardScaler, TargetEncoder

    _Array = NDArray[Any]


def imputer(step: SimpleImputer, fill: Any, *, is_numeric: bool) -> SimpleImputer:
    """Return an imputer that fills in this value."""
    if is_numeric:
        # Each strategy finds in one number that number.
        return clone(step).fit(np.array([[fill]], dtype=np.float64))
    return SimpleImputer(strategy="constant", fill_value=fill).fit(objects([fill]))


def without_names() -> FunctionTransformer:
    """Return a step between an imputer and an encoder, which is fitted without names: rows as arrays in all formats."""
    step = FunctionTransformer(np.asarray, feature_names_out="one-to-one").fit(np.zeros((1, 1)))
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
    """Return a discretizer with these edges, the outer ones included; with less than three it has one bucket."""
    buckets = max(len(edges) - 1, 1)
    fitted = clone(step).set_params(n_bins=max(buckets, 2), strategy="uniform")
    with warnings.catch_warnings():
        # One bucket is that of a column with one number, of which scikit-learn warns.
        warnings.simplefilter("ignore", UserWarning)
        fitted.fit(np.array([[0.0], [float(buckets > 1)]]))
    if len(edges) > 1:
        fitted.bin_edges_ = np.array([edges, None], dtype=object)[:1]
    return fitted.set_params(**step.get_params())


def indicators(step: OneHotEncoder, categories: Sequence[Any]) -> OneHotEncoder:
    """Return an encoder with these categories."""
    return _categorical(clone(step).fit(_numbers(categories)), categories)


def means(step: TargetEncoder, categories: Sequence[Any], tables: _Array) -> TargetEncoder:
    """Return an encoder with these categories and their means.

    Parameters
    ----------
    step
        Has the parameters.
    categories
        The categories.
    tables
        Shape (sets, categories + 1): the means, the last is that of what was not there in the fit. Of several sets the
        encoder returns a column each, as of the classes of a target.
    """
    fitted = clone(step).set_params(target_type="continuous")
    fitted.fit(_numbers(categories), np.zeros(len(categories)))
    fitted.encodings_, fitted.target_mean_ = list(tables[:, :-1]), tables[0, -1]
    if len(tables) > 1:
        fitted.target_type_, fitted.classes_ = "multiclass", np.arange(len(tables))
        fitted.target_mean_ = tables[:, -1]
    return _categorical(fitted, categories)


def objects(values: Sequence[Any]) -> _Array:
    """Return values of any type as a column."""
    column = np.empty((len(values), 1), dtype=object)
    column[:, 0] = values
    return column


def _numbers(categories: Sequence[Any]) -> _Array:
    """Return a number for each category: scikit-learn compares categories in a fit, and these may be of many types."""
    return np.arange(len(categories))[:, None]


def _categorical(encoder: Any, categories: Sequence[Any]) -> Any:
    # scikit-learn finds numbers among numbers, and what is an object among anything.
    alike = set(map(type, categories)) in ({int}, {float})
    encoder.categories_ = [np.array(categories) if alike else objects(categories)[:, 0]]
    return encoder
