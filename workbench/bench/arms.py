"""The ways of fitting one model that are compared: our engines on a cluster, and the same kernels in bare MPI.

Cluster and bare program are both alive and take turns on data that agree. While the bare ranks compute, those of the
cluster are stopped; while the cluster computes, the bare ones sleep.
"""

from __future__ import annotations

import dataclasses
import os
import time
import warnings
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from workbench.bench import measuring, turns
from workbench.bench.measuring import Growth, halted
from workbench.bench.report import above_zero, alternate, positive
from workbench.errors import InvalidRequest, WorkbenchError

if TYPE_CHECKING:
    from dask.array import Array
    from distributed import Client

    from workbench.bench.bare_fits import Fit, Order
    from workbench.bench.turns import Turns
    from workbench.launch.mpi_library import MPI

MODELS, ENGINES, BARE = ("kmeans", "logistic"), ("mpi", "dask"), "bare"
"""What is fitted, by which of our engines, and the reference."""
_PROGRAM = "workbench.bench.bare_fits"
# Rows of the trial fits, from which the rows of an iteration are computed.
_TRIAL = 100_000
# Seconds for a bare world to start, and for a fit of it.
_START, _WITHIN = 60.0, 300.0


def fit_options(parser: ArgumentParser, *, rounds: int, starts: int, iterations: int, milliseconds: float) -> None:
    """Add the options that all benches of these arms have, with their defaults."""
    whole: dict[str, Any] = {"type": positive, "metavar": "N"}
    parser.add_argument("--rounds", default=rounds, help=f"measurements of each arm (default: {rounds})", **whole)
    # Where memory lies changes from start to start, and with it the time of a kernel by ten percent and more.
    parser.add_argument(
        "--starts", default=starts, help=f"of all worlds, to share the rounds (default: {starts})", **whole
    )
    parser.add_argument("--iterations", default=iterations, help=f"of a fit (default: {iterations})", **whole)
    said = f"time of an iteration, for scaling on 1 rank (default: {milliseconds:g})"
    parser.add_argument("--iteration-ms", type=above_zero, default=milliseconds, metavar="MS", help=said)
    parser.add_argument(
        "--rows", help="of each rank, of strong scaling in all (default: as many as take that)", **whole
    )


def bare_world(found: MPI, ranks: int) -> AbstractContextManager[Turns]:
    """Start the bare program on so many ranks, and end it."""
    return turns.taking(found, ranks, _PROGRAM, _START)


def rows_for(bare: Turns, model: str, iterations: int, milliseconds: float) -> int:
    """Return the rows of each rank that make an iteration so long."""
    from workbench.bench.bare_fits import Order

    order = Order(model, _TRIAL, iterations)
    seconds: float = min(max(fit.seconds for fit in bare.take(order, _WITHIN)) for _ in range(3))
    share: float = milliseconds / 1e3 * iterations / seconds
    return max(1, round(_TRIAL * share))


class Arms:
    """The ways of fitting one model, on data that agree.

    Parameters
    ----------
    client
        Of the cluster.
    bare
        The bare program, on as many ranks.
    order
        What all of them fit.
    expected
        What they are to find; None: what the first fit does.

    Raises
    ------
    WorkbenchError
        Of every method, if an arm comes to another result, or does not run under the same conditions.
    InvalidRequest
        Of every method, if a fit converges before its iterations are made.
    """

    def __init__(self, client: Client, bare: Turns, order: Order, expected: Any = None) -> None:
        from workbench import run_on_ranks
        from workbench.bench import bare_fits

        self._client, self._bare, self._order = client, bare, order
        self.expected = expected
        self._pids = list(client.run(os.getpid).values())
        self._data: tuple[Array, Array] = run_on_ranks(
            bare_fits.block, order.rows, order.pieces, client=client, result="blocks"
        )
        self._settings = run_on_ranks(bare_fits.setting, self._data[0], client=client)

    def measure(self, rounds: int) -> Iterator[tuple[int, str, float]]:
        """Yield round, arm and seconds of each fit."""
        return self._rounds((*ENGINES, BARE), rounds)

    def pairs(self, rounds: int) -> Iterator[tuple[int, str, str, float]]:
        """Yield round, engine, arm and seconds of each fit: those of an engine and a round are neighbors in time."""
        for engine in ENGINES:
            for number, arm, seconds in self._rounds((engine, BARE), rounds):
                yield number, engine, arm, seconds

    def _rounds(self, arms: Sequence[str], rounds: int) -> Iterator[tuple[int, str, float]]:
        for number, arm in alternate(arms, rounds):
            seconds = self._fit_bare(self._order)[0] if arm == BARE else self._fit(arm)
            if number:
                yield number, arm, seconds

    def growth(self) -> dict[str, Growth]:
        """Return for each arm what that rank took, beyond what it held before a fit, that took most.

        Notes
        -----
        Not to be called before something is timed in these worlds: see `Watch`. The first fit of
        each arm loads what is needed, and does not count.
        """
        grown: dict[str, Growth] = {}
        for _, arm in alternate((*ENGINES, BARE), 1):
            grown[arm] = max(self._growths(arm), key=lambda growth: growth.nbytes)
        return grown

    def _growths(self, arm: str) -> list[Growth]:
        if arm == BARE:
            return self._fit_bare(dataclasses.replace(self._order, watched=True))[1]
        self._client.run(measuring.begin)
        self._fit(arm)
        return list(self._client.run(measuring.end).values())

    def _fit_bare(self, order: Order) -> tuple[float, list[Growth]]:
        with halted(self._pids):
            fits: list[Fit] = self._bare.take(order, _WITHIN)
        settings = [fit.setting for fit in fits]
        if settings != self._settings:
            raise WorkbenchError(f"world, threads, cores and alignment are {settings}, in the cluster {self._settings}")
        self._require_same(BARE, fits[0].iterations, fits[0].found)
        return max(fit.seconds for fit in fits), [fit.growth for fit in fits if fit.growth]

    def _fit(self, engine: str) -> float:
        import numpy as np
        from sklearn.exceptions import ConvergenceWarning

        from workbench.bench.bare_fits import CLUSTERS, centers
        from workbench.ml import KMeans, LogisticRegression

        X, y = self._data
        most: dict[str, Any] = {"max_iter": self._order.iterations, "tol": 0.0, "engine": engine}
        with warnings.catch_warnings():
            # To end before is what is asked for.
            warnings.simplefilter("ignore", ConvergenceWarning)
            begin = time.perf_counter()
            if self._order.model == "kmeans":
                clusters = KMeans(CLUSTERS, init=centers(), **most).fit(X)
                took = time.perf_counter() - begin
                made, found = clusters.n_iter_, np.append(clusters.cluster_centers_, clusters.inertia_)
            else:
                classes = LogisticRegression(**most).fit(X, y)
                took = time.perf_counter() - begin
                made, found = int(classes.n_iter_[0]), np.append(classes.coef_, classes.intercept_)
        self._require_same(engine, made, found)
        return took

    def _require_same(self, arm: str, made: int, found: Any) -> None:
        self.expected = found if self.expected is None else self.expected
        require_same(self._order, arm, made, found, self.expected)


def require_same(order: Order, arm: str, made: int, found: Any, expected: Any) -> None:
    """Raise if a fit has made other iterations than were ordered, or came to something else than the first one.

    Raises
    ------
    InvalidRequest
        If it has converged before.
    WorkbenchError
        If the results are not the same, but for rounding.
    """
    import numpy as np

    if made != order.iterations:
        allowed = f"fewer, or more --rows: {order.model} by {arm} was done after {made}"
        raise InvalidRequest(option="iterations", given=order.iterations, allowed=allowed)
    if not np.allclose(found, expected, rtol=1e-6, atol=1e-8):
        apart = float(np.abs(found - expected).max())
        raise WorkbenchError(f"{order.model} by {arm} came to another result than the first fit, apart by {apart:g}")
