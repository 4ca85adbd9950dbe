"""K-means on ranks, with the interface of scikit-learn."""

from __future__ import annotations

import os
import warnings
from numbers import Integral, Number, Real
from typing import Any, ClassVar, Self

import numpy as np
from dask.base import is_dask_collection
from sklearn.base import ClassNamePrefixFeaturesOutMixin, ClusterMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics.pairwise import euclidean_distances
from sklearn.utils import check_array, check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import _check_sample_weight, check_is_fitted

from workbench.ml.checks import FLOATS, Checks
from workbench.ml.data import training
from workbench.ml.device_rows import part_on
from workbench.ml.engine.journal import EVERY
from workbench.ml.engine.mpi_parts import Task
from workbench.ml.engine.progress import Callback
from workbench.ml.estimator import Estimator, dtype_for
from workbench.ml.kmeans import fit as kmeans_fit
from workbench.ml.kmeans.device_part import DeviceKMeansPart
from workbench.ml.kmeans.part import KMeansPart
from workbench.ml.placed import as_array, computed, counted
from workbench.ml.transformer import Transformer


class KMeans(ClassNamePrefixFeaturesOutMixin, Transformer, ClusterMixin, Estimator):  # type: ignore[misc]
    """K-means clustering.

    Parameters
    ----------
    n_clusters : int, default=8
        Number of clusters.
    init : {"k-means||", "k-means++", "random"} or array of shape (n_clusters, features), default="k-means||"
        The first centers. ``"k-means++"`` is an alias of ``"k-means||"``, the variant for rows on many ranks.
        ``"random"`` draws rows by their weights.
    n_init : int or "auto", default="auto"
        Number of runs from different first centers; the result is the best run. ``"auto"`` is 10 for ``"random"``, else
        1. An array of first centers is always one run.
    max_iter : int, default=300
        Maximum number of iterations of a run.
    tol : float, default=1e-4
        Convergence: the sum of the squared differences between the centers of two iterations, relative to the mean
        variance of the features.
    random_state : int, RandomState instance or None, default=None
        Seed of the first centers. The result does not depend on the number of ranks, apart from rounding.
    compute_labels : bool, default=True
        Whether to assign the rows to the last centers. False: the model has neither `labels_` nor `inertia_`, and a fit
        that ends before all rows stay in their clusters saves one pass over the rows.
    engine : {"auto", "mpi", "dask", "local"}, default="auto"
        See `workbench.ml.engine.fitting.fit`.
    device : str, default=None
        Where ranks compute a fit: None, the CPU, with NumPy; or a device of PyTorch such as ``"cuda"``, to which each
        rank copies its dense rows when the fit begins. Predictions are computed on the CPU.
    verbose : int, default=0
        1: a progress bar; 2: one line per iteration.
    callback : callable, default=None
        Called after each iteration with its numbers: ``iteration``, ``score``, ``shift``, ``moved``.

    Attributes
    ----------
    cluster_centers_ : ndarray of shape (n_clusters, features), dtype of X
        The centers.
    labels_ : array of shape (rows,), int32
        The cluster of each row. For a Dask collection a placed Dask array, 4 bytes per row on the ranks for as long as
        the model or the array exists. A pickle or a copy of the model is without the array; ``predict(X)`` returns the
        same labels.
    inertia_ : float
        Weighted sum of the squared distances of the rows to their centers.
    n_iter_ : int
        Number of iterations of the best run.
    n_features_in_ : int
        Number of features.
    engine_ : str
        The engine of the fit: ``"mpi"``, ``"dask"``, or ``"local"``, this process.

    Notes
    -----
    From the same first centers the result is that of scikit-learn, apart from rounding: rows with the same distance
    from two centers, to 14 digits, may be in the other cluster. The first centers of k-means|| cost about as much as
    five iterations, and two more for each round that finds clusters far from all others.

    Examples
    --------
    >>> import numpy as np
    >>> from workbench.ml import KMeans
    >>> X = np.array([[1.0, 2.0], [1.0, 4.0], [10.0, 2.0], [10.0, 4.0]])
    >>> model = KMeans(2, random_state=0).fit(X)
    >>> model.cluster_centers_
    array([[ 1.,  3.],
           [10.,  3.]])
    >>> model.predict([[0.0, 0.0], [12.0, 3.0]])
    array([0, 1], dtype=int32)
    """

    _sparse = True
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **Estimator._parameter_constraints,
        "device": [str, None],
        "n_clusters": [Interval(Integral, 1, None, closed="left")],
        "init": [StrOptions({"k-means||", "k-means++", "random"}), "array-like"],
        "n_init": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "random_state": ["random_state"],
        "compute_labels": ["boolean"],
    }

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        init: Any = "k-means||",
        n_init: int | str = "auto",
        max_iter: int = 300,
        tol: float = 1e-4,
        random_state: Any = None,
        compute_labels: bool = True,
        engine: str = "auto",
        device: str | None = None,
        verbose: int = 0,
        callback: Callback | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.compute_labels = compute_labels
        self.engine = engine
        self.device = device
        self.verbose = verbose
        self.callback = callback

    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        checkpoint: str | os.PathLike[str] | None = None,
        every: float = EVERY,
    ) -> Self:
        """Compute the centers.

        Parameters
        ----------
        X : array, CSR matrix, dataframe, or Dask array or dataframe of shape (rows, features)
            The rows.
        y : None
            Not used.
        sample_weight : float, array-like, or Dask array or series of shape (rows,), default=None
            Weights of the rows, at least 0; None: all 1.
        checkpoint : path, default=None
            Folder from which the fit continues after an interruption: see `workbench.ml.estimator.Estimator._fit`.
        every : float, default=60.0
            Seconds of work that an interruption costs at most.

        Returns
        -------
        KMeans
            The estimator itself.

        Raises
        ------
        ValueError, TypeError
            The error of scikit-learn if rows or weights are not valid.
        """
        checks = Checks(type(self).__name__, sparse=self._sparse, integers=True)
        data = training(self, checks, X, None, sample_weight)
        self.__dict__.pop("labels_", None)
        self.__dict__.pop("inertia_", None)
        settings = self._settings(data.X)
        kept = (np.empty(0, np.int32),) if self.compute_labels else ()
        task = Task(kmeans_fit.fit, settings, part_on(self.device, KMeansPart, DeviceKMeansPart), checks, kept)
        fitted = self._fit(task, data, checkpoint=checkpoint, every=every)
        if self.compute_labels:
            fitted, (self.labels_,) = fitted
            self.inertia_ = fitted.inertia
        self.cluster_centers_, self.n_iter_ = fitted.centers.astype(data.dtype), fitted.iterations
        if fitted.distinct < self.n_clusters:
            warnings.warn(
                f"Number of distinct clusters ({fitted.distinct}) found smaller than n_clusters ({self.n_clusters}). "
                "Possibly due to duplicate points in X.",
                ConvergenceWarning,
                stacklevel=2,
            )
        if not fitted.converged:
            self._warn("the centers still move", fitted.iterations)
        return self

    def _settings(self, X: Any) -> kmeans_fit.Settings:
        if X.shape[0] < self.n_clusters:
            raise ValueError(f"n_samples={X.shape[0]} should be >= n_clusters={self.n_clusters}.")
        init = self.init
        if not isinstance(init, str):
            init = check_array(init, dtype=FLOATS, input_name="init")
            if init.shape != (self.n_clusters, X.shape[1]):
                raise ValueError(
                    f"The shape of the initial centers {init.shape} does not match the number of clusters "
                    f"{self.n_clusters} and of features {X.shape[1]}."
                )
        if not isinstance(init, str):
            runs = 1
        elif self.n_init == "auto":
            runs = 10 if init == "random" else 1
        else:
            runs = int(self.n_init)
        # With given centers nothing is drawn, so the state of NumPy's generator stays as the user has set it.
        seed = int(check_random_state(self.random_state).randint(2**31 - 1)) if isinstance(init, str) else 0
        return kmeans_fit.Settings(
            n_clusters=self.n_clusters,
            init=init,
            n_init=runs,
            max_iter=self.max_iter,
            tol=self.tol,
            seed=seed,
            rows=X.shape[0],
            compute_labels=self.compute_labels,
        )

    @property
    def _n_features_out(self) -> int:
        return len(self.cluster_centers_)

    def __getstate__(self) -> dict[str, Any]:
        # A pickled model has no blocks, which stay on their ranks.
        state: dict[str, Any] = dict(super().__getstate__())
        if is_dask_collection(state.get("labels_")):
            del state["labels_"]
        return state

    def fit_predict(self, X: Any, y: Any = None, sample_weight: Any = None, **options: Any) -> Any:
        """Compute the centers, and return the cluster of each row.

        Parameters
        ----------
        X, y, sample_weight, **options
            See `fit`.

        Returns
        -------
        array of shape (rows,), int32
            `labels_`; without `compute_labels` the result of `predict`.
        """
        self.fit(X, y, sample_weight, **options)
        return self.labels_ if self.compute_labels else self.predict(X)

    def predict(self, X: Any) -> Any:
        """Return the cluster of each row.

        Parameters
        ----------
        X : array, CSR matrix, dataframe, or Dask array or dataframe of shape (rows, features)
            The rows.

        Returns
        -------
        array of shape (rows,), int32
            The numbers of the nearest centers. Lazy if X is a Dask collection.
        """
        check_is_fitted(self)
        if is_dask_collection(X):
            return self._map("predict", X, None, np.int32)
        X = self._checked(X, order="C")
        return KMeansPart(X, None, None, 0).labels(self.cluster_centers_)

    def transform(self, X: Any) -> Any:
        """Return the distances of each row to all centers.

        Parameters
        ----------
        X : array, CSR matrix, dataframe, or Dask array or dataframe of shape (rows, features)
            The rows.

        Returns
        -------
        array of shape (rows, n_clusters), float32 if rows and centers are
            Euclidean distances, in the unit of the features. Lazy if X is a Dask collection.
        """
        check_is_fitted(self)
        if is_dask_collection(X):
            return self._map("transform", X, self._n_features_out, dtype_for(X, self.cluster_centers_))
        X = self._checked(X)
        return euclidean_distances(X, self.cluster_centers_)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the negative inertia of rows.

        Parameters
        ----------
        X : array, CSR matrix, dataframe, or Dask array or dataframe of shape (rows, features)
            The rows.
        y : None
            Not used.
        sample_weight : float, array-like, or Dask array or series of shape (rows,), default=None
            Weights of the rows, at least 0; None: all 1.

        Returns
        -------
        float
            The weighted sum of the squared distances of the rows to their nearest centers, times -1, in the squared
            unit of the features.
        """
        check_is_fitted(self)
        squares, weight = self._squared_distances(X), 1.0 if sample_weight is None else sample_weight
        if not is_dask_collection(X):
            weight = weight if sample_weight is None else _check_sample_weight(weight, X, dtype=np.float64)
        elif not isinstance(weight, Number):
            weight = as_array(weight) if is_dask_collection(weight) else np.asarray(weight)
            squares, weight = counted([squares, weight])
            if weight.shape != squares.shape:
                raise ValueError(f"sample_weight.shape == {weight.shape}, expected {squares.shape}!")
        return -float(computed((squares * weight).sum())[0])

    def _squared_distances(self, X: Any) -> Any:
        """Return the squared distance of each row to its nearest center, shape (rows,)."""
        if is_dask_collection(X):
            return self._map("_squared_distances", X, None, np.float64)
        X = self._checked(X, order="C")
        return KMeansPart(X, None, None, 0).distances(self.cluster_centers_)
