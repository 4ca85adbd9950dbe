"""The base class of estimators that transform rows: results of the set type, without gathering."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from dask.base import is_dask_collection
from scipy import sparse
from sklearn.base import TransformerMixin
from sklearn.utils._set_output import _get_output_config, _wrap_data_with_container

from workbench.ml.engine.select import chosen
from workbench.ml.placed import placed
from workbench.placement.sources import placed_by, with_final_partitions


class Transformer(TransformerMixin, auto_wrap_output_keys=None):  # type: ignore[misc, call-arg]
    """Replaces the mixin of scikit-learn, whose ``set_output`` would compute and gather Dask collections.

    Notes
    -----
    If pandas output is set, ``transform`` of a Dask collection returns a Dask dataframe with the names of the features,
    and with the index of X if X is a dataframe. Other settings have no effect on Dask arrays.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in ("transform", "fit_transform"):
            # scikit-learn has just wrapped the methods that this class defines.
            if plain := getattr(vars(cls).get(name), "__wrapped__", None):
                setattr(cls, name, _lazily(plain, vars(cls)[name]))

    def fit_transform(self, X: Any, y: Any = None, **params: Any) -> Any:
        """Fit, and return the rows transformed.

        Parameters
        ----------
        X, y, **params
            See ``fit``.

        Returns
        -------
        array, dataframe or Dask collection
            The result of ``transform``. A Dask collection is placed, one block per rank, and computed once: the next
            step of a pipeline fits on these blocks.
        """
        if not is_dask_collection(X):
            return _wrap_data_with_container("transform", self._fit_transform(X, y, **params), X, self)
        self._validate_params()
        chosen(self.engine, distributed=True)  # a placement on a worker would wait for this worker
        arguments = {"X": X, "y": y} | params
        # In the order of `placed`; `fit` refuses arguments that are not lazy.
        names = [name for name in ("X", "y", "sample_weight") if name in arguments]
        lazy = [arguments[name] if is_dask_collection(arguments[name]) else None for name in names]
        arguments |= {name: value for name, value in zip(names, placed(lazy), strict=True) if value is not None}
        return placed([_named(self, arguments["X"], self._fit_transform(**arguments))])[0]

    def _fit_transform(self, X: Any, y: Any, **params: Any) -> Any:
        # The method of scikit-learn without its wrapper.
        return TransformerMixin.fit_transform.__wrapped__(self, X, y, **params)


def _lazily(plain: Callable[..., Any], wrapped: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that calls the wrapper of scikit-learn only for data in this process."""

    @functools.wraps(plain)
    def method(self: Any, X: Any, *args: Any, **options: Any) -> Any:
        if not is_dask_collection(X):
            return wrapped(self, X, *args, **options)
        if _wants_frame(self) and hasattr(X, "divisions") and placed_by(X) is None:
            # The index and the rows of a partition are read by different tasks.
            X = with_final_partitions(X)
        return _named(self, X, plain(self, X, *args, **options))

    return method


def _named(model: Any, X: Any, result: Any) -> Any:
    """Return the transformed rows as a Dask dataframe if the user has set pandas output, else unchanged."""
    from dask.dataframe import from_dask_array

    if not _wants_frame(model) or hasattr(result, "divisions"):
        return result
    if sparse.issparse(result._meta):
        raise ValueError(
            "The transformer outputs sparse matrices, which cannot be dataframes. Pass sparse_output=False to the "
            "transformer, or call set_output(transform='default')."
        )
    names = list(model.get_feature_names_out())
    return from_dask_array(result, columns=names, index=X.index if hasattr(X, "divisions") else None)


def _wants_frame(model: Any) -> bool:
    return bool(_get_output_config("transform", model)["dense"] == "pandas")
