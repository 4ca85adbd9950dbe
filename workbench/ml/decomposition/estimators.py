"""Principal components and singular vectors on ranks, with the interface of scikit-learn."""

from __future__ import annotations

import os
import warnings
from abc import abstractmethod
from dataclasses import replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from dask.base import is_dask_collection
from scipy.linalg import LinAlgWarning
from sklearn import decomposition
from sklearn.base import ClassNamePrefixFeaturesOutMixin
from sklearn.utils import check_array, check_random_state
from sklearn.utils._param_validation import Interval, RealNotInt, StrOptions
from sklearn.utils.extmath import fast_logdet
from sklearn.utils.validation import check_is_fitted

from workbench.ml import memory_guard
from workbench.ml.algebra.row_slices import centered
from workbench.ml.checks import FLOATS, Checks
from workbench.ml.data import training
from workbench.ml.decomposition import fit as decomposition_fit
from workbench.ml.decomposition.device_part import DeviceDecompositionPart
from workbench.ml.decomposition.part import DecompositionPart
from workbench.ml.device_rows import part_on
from workbench.ml.engine.journal import EVERY
from workbench.ml.engine.mpi_parts import Task
from workbench.ml.engine.progress import Callback
from workbench.ml.estimator import Estimator, dtype_for
from workbench.ml.placed import computed
from workbench.ml.transformer import Transformer

if TYPE_CHECKING:
    from numpy.typing import NDArray

_INSTEAD = (
    "Pass solver='randomized', whose matrices have one column for each component, with small n_components, or use "
    "ranks with more memory."
)


class _Decomposition(ClassNamePrefixFeaturesOutMixin, Transformer, Estimator):  # type: ignore[misc]
    """The base class of `PCA` and `TruncatedSVD`."""

    _sparse = True
    _centered: ClassVar[bool]
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **Estimator._parameter_constraints,
        "device": [str, None],
        "n_components": [Interval(Integral, 1, None, closed="left")],
        "solver": [StrOptions(set(decomposition_fit.SOLVERS))],
        "n_iter": [Interval(Integral, 0, None, closed="left")],
        "n_oversamples": [Interval(Integral, 1, None, closed="left")],
        "random_state": ["random_state"],
    }

    n_components: float | None
    device: str | None
    solver: str
    n_iter: int
    n_oversamples: int
    random_state: Any

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        checkpoint: str | os.PathLike[str] | None = None,
        every: float = EVERY,
    ) -> Self:
        """Compute the components.

        Parameters
        ----------
        X : array, CSR matrix, dataframe, or Dask array or dataframe of shape (rows, features)
            The rows.
        y : None
            Not used.
        checkpoint : path, default=None
            Folder from which the fit continues after an interruption: see `workbench.ml.estimator.Estimator._fit`.
        every : float, default=60.0
            Seconds of work that an interruption costs at most.

        Returns
        -------
        PCA or TruncatedSVD
            The estimator itself.

        Raises
        ------
        ValueError, TypeError
            The error of scikit-learn if the rows or the number of components are not valid.
        InvalidRequest
            If the matrices of the solver exceed the memory limit of a rank.

        Warns
        -----
        LinAlgWarning
            If ``"gram"`` has fewer than 6 digits of a singular value, and ``"tsqr"`` exceeds the memory limit.
        """
        checks = Checks(type(self).__name__, sparse=self._sparse, integers=True)
        data = training(self, checks, X)
        rows, features = data.X.shape
        self._check(rows, features)
        settings = decomposition_fit.Settings(
            n_components=self.n_components,
            centered=self._centered,
            solver=self.solver,
            n_iter=self.n_iter,
            n_oversamples=self.n_oversamples,
            seed=0,
            rows=rows,
            features=features,
        )
        if settings.chosen == "randomized":
            # The others draw nothing, so the state of NumPy's generator stays as the user has set it.
            settings = replace(settings, seed=int(check_random_state(self.random_state).randint(2**31 - 1)))
        name, most = type(self).__name__, settings.most
        limit = memory_guard.check(
            name, data, self.engine, settings.needs, _INSTEAD, most=most, sent=settings.sent, later=settings.later
        )
        settings = replace(settings, limit=limit)
        fitted = self._fit(
            Task(
                decomposition_fit.fit,
                settings,
                part_on(self.device, DecompositionPart, DeviceDecompositionPart),
                checks,
            ),
            data,
            checkpoint=checkpoint,
            every=every,
        )
        dtype = data.dtype
        self.components_ = fitted.components.astype(dtype)
        self.singular_values_ = fitted.singular_values.astype(dtype)
        self.error_bound_ = (fitted.bound + np.finfo(dtype).eps * fitted.singular_values).astype(dtype)
        self.solver_ = fitted.solver
        self._explain(fitted, rows, dtype)
        if fitted.short:
            warnings.warn(
                f"{name} of {features} features: the smallest singular values are accurate to fewer than 6 digits (see "
                f"error_bound_). solver='tsqr', which computes all digits, needs {fitted.short}. Pass smaller "
                "n_components, or use ranks with more memory.",
                LinAlgWarning,
                stacklevel=2,
            )
        return self

    def _check(self, rows: int, features: int) -> None:
        """Raise ValueError if the number of components is not valid."""
        number = self.n_components or 1
        if number > min(rows, features):
            raise ValueError(
                f"n_components={number} must be between 1 and min(n_samples, n_features)={min(rows, features)}, with "
                f"n_samples={rows} and n_features={features}"
            )

    @abstractmethod
    def _explain(self, fitted: decomposition_fit.Fitted, rows: int, dtype: np.dtype[Any]) -> None:
        """Set the attributes of the variances of the components."""

    def transform(self, X: Any) -> Any:
        """Return the projections of the rows on the components.

        Parameters
        ----------
        X : array, CSR matrix, dataframe, or Dask array or dataframe of shape (rows, features)
            The rows.

        Returns
        -------
        array of shape (rows, n_components), float32 if rows and components are
            In the unit of the features; without unit with ``whiten``. Lazy if X is a Dask collection.
        """
        check_is_fitted(self)
        if is_dask_collection(X):
            return self._map("transform", X, len(self.components_), dtype_for(X, self.components_))
        X = self._checked(X)
        return self._onto(np.asarray(X @ self.components_.T))

    @abstractmethod
    def _onto(self, products: NDArray[Any]) -> NDArray[Any]:
        """Return the projections of rows from their products with the components."""

    def inverse_transform(self, X: Any) -> Any:
        """Return the rows of projections.

        Parameters
        ----------
        X : array, dataframe, or Dask array or dataframe of shape (rows, n_components)
            A result of `transform`.

        Returns
        -------
        array of shape (rows, features), float32 if X and components are
            The rows without the parts along other components. Lazy if X is a Dask collection.
        """
        check_is_fitted(self)
        if is_dask_collection(X):
            number, features = self.components_.shape
            dtype = dtype_for(X, self.components_)
            return self._map("inverse_transform", X, features, dtype, transformed=number)
        return self._back(check_array(X, input_name="X", dtype=FLOATS))

    @abstractmethod
    def _back(self, X: NDArray[Any]) -> NDArray[Any]:
        """Return the rows of a result of `_onto`."""

    @property
    def _n_features_out(self) -> int:
        """Number of columns of `transform`, for scikit-learn."""
        return len(self.components_)


class PCA(_Decomposition):
    """Principal components.

    Parameters
    ----------
    n_components : int, float or None, default=None
        Number of components; the fraction of the variance, less than 1, that the components explain; or None for all.
    whiten : bool, default=False
        Whether `transform` returns columns of variance 1.
    solver : {"auto", "gram", "tsqr", "randomized"}, default="auto"
        ``"gram"``: from the products of features, for few features. ``"tsqr"``: from QR decompositions of blocks, if
        small singular values matter. ``"randomized"``: for many features and few components. ``"auto"`` is
        ``"randomized"`` for more than 1000 features and fewer than 80 % of the components; else ``"tsqr"`` for fewer
        rows than features; else ``"gram"``, followed by ``"tsqr"`` if the singular values have fewer than 6 digits.
    n_iter : int, default=5
        Number of iterations of ``"randomized"``.
    n_oversamples : int, default=10
        Number of vectors of ``"randomized"`` in addition to `n_components`.
    random_state : int, RandomState instance or None, default=None
        Seed of ``"randomized"``.
    engine : {"auto", "mpi", "dask", "local"}, default="auto"
        See `workbench.ml.engine.fitting.fit`.
    device : str, default=None
        Where ranks compute a fit: None, the CPU, with NumPy; or a device of PyTorch such as ``"cuda"``, to which each
        rank copies its dense rows when the fit begins. Predictions are computed on the CPU.
    verbose : int, default=0
        1: a progress bar; 2: one line per pass over the rows.
    callback : callable, default=None
        Called after each pass over the rows with its number and name: ``pass``, ``name``; after an iteration of
        ``"randomized"`` with ``pass`` and ``iteration``.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, features)
        Right singular vectors of the centered rows, the most important first. The number with the largest absolute
        value of each is positive.
    explained_variance_ : ndarray of shape (n_components,)
        Variance of the rows along each component.
    explained_variance_ratio_ : ndarray of shape (n_components,)
        The same as a fraction of the total variance.
    singular_values_ : ndarray of shape (n_components,)
        Singular values of the centered rows.
    error_bound_ : ndarray of shape (n_components,)
        Bound of the error of each singular value. With ``"gram"`` and ``"tsqr"`` the bound is the rounding error of the
        squares or of the values. With ``"randomized"`` the bound comes from the part of the rows outside of the
        vectors, to second order if the singular values are well separated from that part; otherwise the bound is valid,
        but large.
    mean_ : ndarray of shape (features,)
        Mean of the rows.
    noise_variance_ : float
        Mean variance along the omitted components.
    n_components_ : int
        Number of components.
    n_samples_ : int
        Number of rows of the fit.
    solver_ : str
        The solver of the result: ``"gram"``, ``"tsqr"`` or ``"randomized"``.
    n_features_in_ : int
        Number of features.
    engine_ : str
        The engine of the fit: ``"mpi"``, ``"dask"``, or ``"local"``, this process.

    Notes
    -----
    The result is that of scikit-learn, with the same signs of the components: the largest loading is positive. Of
    several largest loadings that differ by rounding only, the first one is positive, with any engine and number of
    ranks; in scikit-learn rounding decides. Singular values agree within
    `error_bound_`; the precision of a component increases with the distance of its singular value from the others. All
    computations are in float64. Each rank needs matrices of features x features, or with ``"randomized"`` of features x
    vectors, and slices of its rows; blocks are never copied.

    Examples
    --------
    >>> import numpy as np
    >>> from workbench.ml import PCA
    >>> X = np.array([[-1.0, -1.0], [-2.0, -1.0], [-3.0, -2.0], [1.0, 1.0], [2.0, 1.0], [3.0, 2.0]])
    >>> model = PCA(1).fit(X)
    >>> model.explained_variance_ratio_.round(3)
    array([0.992])
    >>> model.transform(X).shape
    (6, 1)
    """

    _centered = True
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **_Decomposition._parameter_constraints,
        "n_components": [
            Interval(Integral, 1, None, closed="left"),
            Interval(RealNotInt, 0, 1, closed="neither"),
            None,
        ],
        "whiten": ["boolean"],
    }

    def __init__(
        self,
        n_components: float | None = None,
        *,
        whiten: bool = False,
        solver: str = "auto",
        n_iter: int = 5,
        n_oversamples: int = 10,
        random_state: Any = None,
        engine: str = "auto",
        device: str | None = None,
        verbose: int = 0,
        callback: Callback | None = None,
    ) -> None:
        self.n_components = n_components
        self.whiten = whiten
        self.solver = solver
        self.n_iter = n_iter
        self.n_oversamples = n_oversamples
        self.random_state = random_state
        self.engine = engine
        self.device = device
        self.verbose = verbose
        self.callback = callback

    def _check(self, rows: int, features: int) -> None:
        super()._check(rows, features)
        if rows < 2:
            raise ValueError(
                f"Found array with n_samples={rows} (shape={(rows, features)}): PCA requires a minimum of 2."
            )
        if self.solver == "randomized" and self.n_components is not None and self.n_components < 1:
            raise ValueError(
                f"n_components={self.n_components} is a fraction of the total variance, for which "
                "solver='randomized' cannot find the number of components. Pass a number of components, or "
                "solver='gram' or 'tsqr'."
            )

    def _explain(self, fitted: decomposition_fit.Fitted, rows: int, dtype: np.dtype[Any]) -> None:
        squares, number = np.square(fitted.singular_values), len(fitted.singular_values)
        total = squares.sum() + fitted.rest
        left = min(rows, len(fitted.mean)) - number
        self.mean_ = fitted.mean.astype(dtype)
        self.explained_variance_ = (squares / (rows - 1)).astype(dtype)
        self.explained_variance_ratio_ = (squares / (total or 1.0)).astype(dtype)
        self.noise_variance_ = dtype.type(fitted.rest / (rows - 1) / left if left else 0.0)
        self.n_components_, self.n_samples_ = number, rows

    # The model of both estimators is the same: these methods read the attributes of a fit only.
    get_covariance = decomposition.PCA.get_covariance
    get_precision = decomposition.PCA.get_precision

    def score_samples(self, X: Any) -> Any:
        """Return the log-likelihood of each row under the probabilistic model of the components.

        Parameters
        ----------
        X : array, CSR matrix, dataframe, or Dask array or dataframe of shape (rows, features)
            The rows.

        Returns
        -------
        array of shape (rows,), float64
            Lazy if X is a Dask collection.

        Notes
        -----
        Tipping and Bishop, Journal of the Royal Statistical Society B 61 (1999).
        """
        check_is_fitted(self)
        if is_dask_collection(X):
            return self._map("score_samples", X, None, np.float64)
        X = self._checked(X)
        precision = self.get_precision().astype(np.float64)
        constant = fast_logdet(precision) - len(precision) * np.log(2 * np.pi)
        likelihoods = np.empty(X.shape[0])
        for part, rows in centered(X, self.mean_.astype(np.float64)):
            likelihoods[part] = (constant - np.einsum("ij,ij->i", rows @ precision, rows)) / 2
        return likelihoods

    def score(self, X: Any, y: Any = None) -> float:
        """Return the mean log-likelihood of the rows.

        Parameters
        ----------
        X : array, CSR matrix, dataframe, or Dask array or dataframe of shape (rows, features)
            The rows.
        y : None
            Not used.

        Returns
        -------
        float
            The mean of `score_samples`.
        """
        return float(computed(self.score_samples(X).mean())[0])

    def _scales(self) -> NDArray[Any]:
        """Return the standard deviations by which `transform` divides the columns with ``whiten``."""
        least = np.finfo(self.explained_variance_.dtype).eps
        scales: NDArray[Any] = np.maximum(np.sqrt(self.explained_variance_), least)
        return scales

    def _onto(self, products: NDArray[Any]) -> NDArray[Any]:
        products = products - self.mean_ @ self.components_.T
        onto: NDArray[Any] = products / self._scales() if self.whiten else products
        return onto

    def _back(self, X: NDArray[Any]) -> NDArray[Any]:
        rows: NDArray[Any] = (X * self._scales() if self.whiten else X) @ self.components_ + self.mean_
        return rows


class TruncatedSVD(_Decomposition):
    """The largest singular values and their vectors, of rows that are not centered.

    Parameters
    ----------
    n_components : int, default=2
        Number of components.
    solver, n_iter, n_oversamples, random_state, engine, device, verbose, callback
        See `PCA`.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, features)
        Right singular vectors of the rows, the most important first. The number with the largest absolute value of each
        is positive.
    explained_variance_ : ndarray of shape (n_components,)
        Variance of the columns of `transform` for the rows of the fit: a difference of squares, which loses digits if
        the mean of the rows is much larger than their deviations.
    explained_variance_ratio_ : ndarray of shape (n_components,)
        The same as a fraction of the total variance.
    singular_values_ : ndarray of shape (n_components,)
        Singular values of the rows.
    error_bound_, solver_, n_features_in_, engine_
        See `PCA`.

    Notes
    -----
    See `PCA`. The result is that of scikit-learn with ``algorithm="arpack"``: the true singular values.

    Examples
    --------
    >>> import numpy as np
    >>> from workbench.ml import TruncatedSVD
    >>> X = np.array([[-1.0, -1.0], [-2.0, -1.0], [-3.0, -2.0], [1.0, 1.0], [2.0, 1.0], [3.0, 2.0]])
    >>> TruncatedSVD(1).fit(X).singular_values_.round(2)
    array([6.3])
    """

    _centered = False
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **_Decomposition._parameter_constraints,
    }

    def __init__(
        self,
        n_components: int = 2,
        *,
        solver: str = "auto",
        n_iter: int = 5,
        n_oversamples: int = 10,
        random_state: Any = None,
        engine: str = "auto",
        device: str | None = None,
        verbose: int = 0,
        callback: Callback | None = None,
    ) -> None:
        self.n_components = n_components
        self.solver = solver
        self.n_iter = n_iter
        self.n_oversamples = n_oversamples
        self.random_state = random_state
        self.engine = engine
        self.device = device
        self.verbose = verbose
        self.callback = callback

    def _explain(self, fitted: decomposition_fit.Fitted, rows: int, dtype: np.dtype[Any]) -> None:
        squares, mean = np.square(fitted.singular_values), fitted.mean
        variance = np.clip(squares / rows - np.square(fitted.components @ mean), 0.0, None)
        total = (squares.sum() + fitted.rest) / rows - mean @ mean
        self.explained_variance_ = variance.astype(dtype)
        self.explained_variance_ratio_ = (variance / total if total > 0 else np.zeros(len(variance))).astype(dtype)

    def _onto(self, products: NDArray[Any]) -> NDArray[Any]:
        return products

    def _back(self, X: NDArray[Any]) -> NDArray[Any]:
        rows: NDArray[Any] = X @ self.components_
        return rows
