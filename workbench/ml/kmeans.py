"""K-means in the manner of scikit-learn, on ranks."""

from __future__ import annotations

import warnings
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
from dask.base import is_dask_collection
from sklearn.base import ClusterMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics.pairwise import euclidean_distances
from sklearn.utils import check_array, check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from workbench.ml import kmeans_fit
from workbench.ml.checks import FLOATS, Checks
from workbench.ml.data import training
from workbench.ml.estimator import Estimator
from workbench.ml.kmeans_part import KMeansPart
from workbench.ml.reporting import Callback
from workbench.ml.task import Task
from workbench.ml.transformer import Transformer


class KMeans(Transformer, ClusterMixin, Estimator):  # type: ignore[misc]
    """K-means clustering.

    Parameters
    ----------
    n_clusters
        Number of clusters.
    init
        The first centres: ``"k-means||"``, ``"random"`` for rows drawn by their weights, or an array of shape
        (n_clusters, features).
    n_init
        Fits from different first centres, of which the best counts.
    max_iter
        Iterations at most.
    tol
        It has converged where the centres move less, squared, in multiples of the mean variance of the features.
    random_state
        Seed, or generator. The result does not depend on the number of ranks, but for rounding.
    engine
        ``"auto"``, ``"dask"`` or ``"mpi"``; see the guide.
    verbose
        1 for a bar, 2 for a line each iteration.
    callback
        Is called after each iteration with its numbers: ``iteration``, ``score``, ``shift``, ``moved``.

    Attributes
    ----------
    cluster_centers_ : ndarray of shape (n_clusters, features)
        The centres.
    labels_ : array of shape (rows,)
        The cluster of each row: a Dask array, not computed yet, where X was one.
    inertia_ : float
        Sum of the squared distances of the rows to their centres, with their weights.
    n_iter_ : int
        Iterations of the best fit.
    n_features_in_ : int
        Number of features.
    engine_ : str
        What the fit ran on: ``"mpi"``, ``"dask"``, or ``"local"``, this process.

    Notes
    -----
    From the same first centres the result is scikit-learn's, but for rounding: rows that are as far from two centres,
    to 14 digits, may be in the other cluster.
    """

    _sparse = True
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **Estimator._parameter_constraints,
        "n_clusters": [Interval(Integral, 1, None, closed="left")],
        "init": [StrOptions({"k-means||", "random"}), "array-like"],
        "n_init": [Interval(Integral, 1, None, closed="left")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        init: Any = "k-means||",
        n_init: int = 1,
        max_iter: int = 300,
        tol: float = 1e-4,
        random_state: Any = None,
        engine: str = "auto",
        verbose: int = 0,
        callback: Callback | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.engine = engine
        self.verbose = verbose
        self.callback = callback

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Find the centres.

        Parameters
        ----------
        X
            Shape (rows, features): array, CSR matrix, dataframe, or a Dask array or dataframe.
        y
            Is not used.
        sample_weight
            Shape (rows,): weights of the rows. Default: all 1.

        Returns
        -------
        KMeans
            This one.
        """
        checks = Checks(type(self).__name__, sparse=self._sparse)
        data = training(self, checks, X, None, sample_weight)
        found = self._fit(Task(kmeans_fit.fit, self._settings(data.X), KMeansPart, checks), data)
        self.cluster_centers_ = found.centers.astype(data.dtype)
        self.inertia_, self.n_iter_ = found.inertia, found.iterations
        self.labels_ = self.predict(X)
        if found.distinct < self.n_clusters:
            warnings.warn(
                f"Number of distinct clusters ({found.distinct}) found smaller than n_clusters ({self.n_clusters}). "
                "Possibly due to duplicate points in X.",
                ConvergenceWarning,
                stacklevel=2,
            )
        if not found.converged:
            self._warn("the centres still move", found.iterations)
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
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        return kmeans_fit.Settings(
            n_clusters=self.n_clusters,
            init=init,
            n_init=1 if not isinstance(init, str) else self.n_init,
            max_iter=self.max_iter,
            tol=self.tol,
            seed=seed,
            rows=X.shape[0],
        )

    def predict(self, X: Any) -> Any:
        """Return the cluster of each row, shape (rows,)."""
        check_is_fitted(self)
        if is_dask_collection(X):
            return self._map("predict", X, None, np.int32)
        X = self._checked(X, order="C")
        return KMeansPart(X, None, None, 0).labels(self.cluster_centers_)

    def transform(self, X: Any) -> Any:
        """Return the distances of each row to all centres, shape (rows, n_clusters)."""
        check_is_fitted(self)
        if is_dask_collection(X):
            return self._map("transform", X, self.n_clusters, self.cluster_centers_.dtype)
        X = self._checked(X)
        return euclidean_distances(X, self.cluster_centers_)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the inertia of rows, negative: the higher the better."""
        nearest = self.transform(X).min(axis=1) ** 2
        total = nearest.sum() if sample_weight is None else (nearest * sample_weight).sum()
        return -float(total)
