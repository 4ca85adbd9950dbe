"""What our estimators and their peers are asked to fit, on the same placed data, with the same iterations."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks import peer_data
from workbench.errors import WorkbenchError

if TYPE_CHECKING:
    import numpy as np
    from dask.array import Array
    from numpy.typing import NDArray

    _Vector = NDArray[np.float64]

OURS, DASK_ML, DAAL, HEAT, DASK = "workbench", "dask_ml", "daal4py", "heat", "svd_compressed"
"""Who takes part."""
UNSCALED = f"{DASK_ML}_unscaled"
"""dask-ml with ``normalize=False``, which its estimators have no parameter for."""
ITERATIONS, RANK = 10, 20
"""Of K-means, of L-BFGS at most; singular values that are looked for."""
# Power iterations of svd_compressed, at most.
_POWER = 8

Timed = tuple[float, Any]
"""Seconds of a fit, and what it found."""


@dataclass(frozen=True)
class Contest:
    """Fits of the same data."""

    what: str
    """Name of the data."""
    arms: dict[str, Callable[[], Timed]]
    """What each does, ours first."""
    value: Callable[[Any], float | _Vector]
    """What is to agree of what was found."""
    tolerance: float
    """How far it may be apart, as a share of the largest of its numbers."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Further facts for the report."""

    def require_same(self, arm: str, found: Any, expected: float | _Vector) -> None:
        """Raise `WorkbenchError` if what an arm has found is not what was expected."""
        import numpy as np

        apart = float(np.abs(np.subtract(self.value(found), expected)).max() / np.abs(expected).max())
        # Not a number is not the same.
        if not apart <= self.tolerance:
            raise WorkbenchError(
                f"{self.what} by {arm} has another result than {OURS}: the relative difference is {apart:.1e}, the "
                f"tolerance {self.tolerance:g}"
            )


def kmeans(X: Array, by_daal: Callable[[], Timed] | None) -> Contest:
    """Return the contest of K-means from the same first centers, which compares the last; daal4py if it is given."""
    first = peer_data.centers()
    most: dict[str, Any] = {"init": first, "max_iter": ITERATIONS, "tol": 0.0}

    def ours() -> Timed:
        from workbench.ml import KMeans

        return _clusters(KMeans(len(first), engine="mpi", **most), X)

    def dask_ml() -> Timed:
        from dask_ml.cluster import KMeans

        return _clusters(KMeans(len(first), **most), X)

    def by_heat() -> Timed:
        from workbench.collective.api import run_on_ranks

        found: list[Any] = []
        seconds = _seconds(lambda: found.extend(run_on_ranks(_by_heat, first, X, result="root")))
        require_all(found[0])
        return seconds, found[1]

    arms = {OURS: ours, DASK_ML: dask_ml, HEAT: by_heat} | ({DAAL: by_daal} if by_daal else {})
    return Contest("kmeans", arms, _itself, 1e-6)


def _by_heat(comm: Any, first: _Vector, block: _Vector) -> tuple[int, _Vector]:
    """Return the iterations of Heat's K-means, and its centers. Runs on every rank."""
    import heat

    from workbench.mpi.heat import to_heat

    rows = to_heat(comm, block)
    model = heat.cluster.KMeans(len(first), init=heat.array(first), max_iter=ITERATIONS, tol=None).fit(rows)
    return model.n_iter_, model.cluster_centers_.numpy()


def _clusters(model: Any, X: Array) -> Timed:
    seconds = _seconds(lambda: model.fit(X))
    require_all(model.n_iter_)
    return seconds, model.cluster_centers_


def require_all(made: int) -> None:
    """Raise `WorkbenchError` if not all iterations of K-means were made."""
    if made != ITERATIONS:
        raise WorkbenchError(f"kmeans was done after {made} of {ITERATIONS} iterations: it needs more rows, by --scale")


def logistic(X: Array, y: Array) -> Contest:
    """Return the contest of logistic regression by L-BFGS, which compares the losses.

    Notes
    -----
    dask-ml scales the features and penalizes the intercept, which changes nothing here: the features have deviations of
    1, and the intercept is about 0.
    """
    import dask.array as da

    most: dict[str, Any] = {"C": 1.0, "solver": "lbfgs", "max_iter": ITERATIONS, "tol": 0.0}

    def ours() -> Timed:
        from workbench.ml import LogisticRegression

        model = LogisticRegression(engine="mpi", **most)
        return _seconds(lambda: model.fit(X, y)), (model.coef_[0], model.intercept_[0])

    def dask_ml(**options: Any) -> Timed:
        from dask_ml.linear_model import LogisticRegression

        model = LogisticRegression(**options, **most)
        return _seconds(lambda: model.fit(X, y)), (model.coef_, model.intercept_)

    def unscaled() -> Timed:
        return dask_ml(solver_kwargs={"normalize": False})

    def loss(found: tuple[_Vector, float]) -> float:
        slopes, intercept = found
        losses = da.logaddexp(0, (1 - 2 * y) * (X @ slopes + intercept))
        return float(losses.sum().compute() + slopes @ slopes / 2)

    return Contest("logistic", {OURS: ours, DASK_ML: dask_ml, UNSCALED: unscaled}, loss, 1e-6)


def svd(X: Array) -> Contest:
    """Return the contest of singular value decompositions, which compares the errors of reconstruction.

    Notes
    -----
    `dask.array.linalg.svd_compressed` makes the fewest power iterations with the same error.
    """
    import dask.array as da
    from dask.base import compute

    tolerance, total = 1e-3, float(da.square(X).sum().compute())

    def ours() -> Timed:
        from workbench.ml import TruncatedSVD

        model = TruncatedSVD(RANK, engine="mpi")
        return _seconds(lambda: model.fit(X)), model.components_

    def compressed(power: int) -> Timed:
        begin = time.perf_counter()
        _, values, components = da.linalg.svd_compressed(X, RANK, n_power_iter=power, seed=0)
        _, found = compute(values, components)
        return time.perf_counter() - begin, found

    def error(components: _Vector) -> float:
        return float((1 - da.square(X @ components.T).sum().compute() / total) ** 0.5)

    enough = (1 + tolerance) * error(ours()[1])
    power = next((power for power in range(_POWER) if error(compressed(power)[1]) <= enough), _POWER)
    facts = {"power iterations of svd_compressed": power}
    return Contest("svd", {OURS: ours, DASK: lambda: compressed(power)}, error, tolerance, facts)


def _itself(found: Any) -> Any:
    return found


def _seconds(fit: Callable[[], Any]) -> float:
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        # To end before is what is asked for; dask-ml sets an option by a name that Dask has changed.
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", FutureWarning)
        begin = time.perf_counter()
        fit()
        return time.perf_counter() - begin
