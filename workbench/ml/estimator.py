"""The base class of all estimators."""

from __future__ import annotations

import copy
import os
import warnings
from typing import Any, ClassVar, Self

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data

from workbench.checkpoint.client import absolute_path
from workbench.gpu.tensors import on_host
from workbench.ml.checks import FLOATS, checked
from workbench.ml.data import Data, axes_of, know_features, refuse_other_axes
from workbench.ml.engine import fitting
from workbench.ml.engine.journal import EVERY, Checkpoint, journaled
from workbench.ml.engine.kept_arrays import Applied
from workbench.ml.engine.mpi_parts import Task
from workbench.ml.engine.progress import Callback, reporting
from workbench.ml.engine.select import ENGINES
from workbench.ml.placed import as_array
from workbench.placement.sources import placed_by
from workbench.text import count


class Estimator(BaseEstimator):  # type: ignore[misc]
    """An estimator whose algorithm runs on the ranks of its rows.

    Attributes
    ----------
    engine_ : str
        The engine of the fit: ``"mpi"``, ``"dask"``, or ``"local"``, this process.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "engine": [StrOptions(set(ENGINES))],
        "verbose": ["verbose"],
        "callback": [callable, None],
    }
    """Constraints of the parameters for scikit-learn; each estimator adds its own."""

    _sparse: ClassVar[bool] = False
    """Whether the estimator accepts CSR matrices."""

    _limited_by: ClassVar[str] = "max_iter"
    """Name of the parameter that limits the iterations; a fit of an estimator without it reports passes."""

    engine: str
    verbose: int
    callback: Callback | None

    def _fit(
        self,
        task: Task,
        data: Data,
        held: fitting.HeldParts | None = None,
        *,
        checkpoint: str | os.PathLike[str] | None = None,
        every: float = EVERY,
    ) -> Any:
        """Run a fit, and return its result; see `workbench.ml.engine.fitting.fit`.

        Parameters
        ----------
        task, data, held
            Arguments of `workbench.ml.engine.fitting.fit`.
        checkpoint
            The folder of the journal of the fit, on a file system that all ranks share; None: there is no journal. A
            fit that was interrupted continues, if its estimator, parameters and data are the same, and a fit that has
            ended is not computed again.
        every
            Seconds between two states of the ranks in the folder: the work that an interruption costs at most. A
            fit whose ranks have no state, such as that of `workbench.ml.PCA`, loses one pass over the rows at most.

        Raises
        ------
        InvalidRequest
            If the folder has the journal of another fit, or cannot be read or written.
        """
        if checkpoint is not None:
            path = absolute_path(checkpoint, "checkpoint")
            task = journaled(task, Checkpoint(path, every, draws=getattr(self, "random_state", 0) is None))
        iterations = getattr(self, self._limited_by, None)
        with reporting(type(self).__name__, iterations, self.verbose, self.callback) as report:
            result, self.engine_ = fitting.fit(task, data, self.engine, report, held)
        return result

    def __sklearn_clone__(self) -> Self:
        # A copy of a callback would be called in the place of the callback that the user watches.
        bare = type(self).__new__(type(self))
        bare.__dict__.update(vars(self), callback=None)
        cloned: Self = super(Estimator, bare).__sklearn_clone__()
        cloned.callback = self.callback
        return cloned

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = self._sparse
        return tags

    def _checked(self, X: Any, **options: Any) -> Any:
        """Return the checked rows of a call of a fitted model: an array or a CSR matrix."""
        return validate_data(self, X, reset=False, accept_sparse="csr", dtype=FLOATS, **options)

    def _warn(self, message: str, iterations: int) -> None:
        """Warn that a fit has ended before it converged."""
        warnings.warn(
            f"{type(self).__name__} did not converge in {count(iterations, 'iteration')} ({message}). Increase "
            "max_iter, or scale the data (StandardScaler).",
            ConvergenceWarning,
            stacklevel=3,
        )

    def _map(
        self,
        method: str,
        X: Any,
        columns: int | None,
        dtype: Any,
        *,
        transformed: int | None = None,
        stays_sparse: bool = False,
    ) -> Any:
        """Return the lazy Dask array of a method that is called with each chunk of a Dask collection.

        Parameters
        ----------
        method
            Name of the method.
        columns
            Number of columns of the results; None: one value per row.
        dtype
            Dtype of the results.
        transformed
            Number of columns of X if X is a result of ``transform``; None: X has the features of the fit.
        stays_sparse
            Whether the results for sparse chunks are matrices in CSR format.
        """
        check_is_fitted(self)
        if transformed is None:
            know_features(self, X, reset=False)
        else:
            refuse_other_axes(X)
            if X.shape[1] != transformed:
                raise ValueError(f"X has {X.shape[1]} columns, and {method} needs the {transformed} of transform.")
        X = rows_together(as_array(X))
        if placed_by(X) is not None:
            # Blocks may be tensors on a device, which Dask cannot concatenate.
            X = X.map_blocks(on_host, dtype=X.dtype, meta=X._meta)
        model = copy.copy(self)
        # The tasks need neither labels of the fit, which may be a Dask graph, nor a callback, and blocks have no names.
        for name in ("labels_", "feature_names_in_"):
            model.__dict__.pop(name, None)
        model.verbose, model.callback = 0, None
        # The chunks of the result are arrays, also if the user has set another output.
        model._sklearn_output_config = {"transform": "default"}
        empty: Any = np.empty(0 if columns is None else (0, columns), dtype)
        if stays_sparse and sparse.issparse(X._meta):
            empty = (sparse.csr_array if isinstance(X._meta, sparse.sparray) else sparse.csr_matrix)(empty)
        call = Applied(model, method, empty)
        axes = list(range(1, X.ndim))
        if columns is None:
            return X.map_blocks(call, drop_axis=axes, dtype=dtype, meta=empty)
        return X.map_blocks(call, drop_axis=axes[1:], chunks=(X.chunks[0], (columns,)), dtype=dtype, meta=empty)


def dtype_for(X: Any, numbers: Any) -> np.dtype[Any]:
    """Return the dtype of results that are computed from the rows of a Dask collection and the numbers of a model."""
    return np.result_type(checked(dtype_of(X)), numbers)


def dtype_of(X: Any) -> np.dtype[Any]:
    """Return the dtype of a Dask array, or of a Dask dataframe as an array; raise TypeError as `axes_of` does."""
    axes_of(X)
    dtype: np.dtype[Any] = (X.to_dask_array() if hasattr(X, "to_dask_array") else X).dtype
    return dtype


def rows_together(X: Any) -> Any:
    """Return a Dask array whose chunks have whole rows; their lengths may be unknown."""
    return X if set(X.numblocks[1:]) == {1} else X.rechunk(dict.fromkeys(range(1, X.ndim), -1))
