"""Comparison of the matrices of a fit, features x features, with the memory limits, before the fit."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from dask.utils import format_bytes
from distributed import system

from workbench.errors import InvalidRequest
from workbench.extension import current_client
from workbench.ml.algebra.memory_limits import UNASKED, Limit
from workbench.ml.algebra.sums import COUNTED
from workbench.ml.engine.dask_parts import group_size
from workbench.ml.engine.select import chosen, serves_calls
from workbench.placement import pinning

if TYPE_CHECKING:
    from workbench.ml.data import Data

_Needs = Callable[[int], int]

# Smaller matrices have room in any process: their fits need no limits.
_SMALL = 256 << 20


def half(features: int) -> int:
    """Return the bytes of half a matrix of features x features."""
    return 4 * features**2


def check(
    estimator: str,
    data: Data,
    engine: str,
    needs: _Needs,
    instead: str,
    *,
    most: int = COUNTED,
    sent: _Needs = half,
    later: float = 0,
) -> Limit:
    """Refuse a fit whose matrices exceed the memory limit of a process.

    Parameters
    ----------
    estimator
        Name of the class, for the message.
    data, engine
        The data and the engine of the fit.
    needs
        Returns the maximum number of bytes of the matrices for a number of features.
    instead
        Advice for the message.
    most
        Maximum number of features with any memory.
    sent
        Returns the number of bytes that a part sends, for a number of features: with Dask this process and the
        first rank of each group receive messages of other ranks.
    later
        Number of bytes that the algorithm may need later, and compares with the limit itself.

    Returns
    -------
    Limit
        The limit for the algorithm.

    Raises
    ------
    InvalidRequest
        If the matrices exceed the memory limit of a rank, or of this process if they are in this process.
    """
    features = data.X.shape[1]
    if max(needs(features), later) < _SMALL:
        return UNASKED
    limits = []
    for limit, required in _limits(data, engine, needs, sent):
        allowed = bisect.bisect_right(range(most + 1), limit.nbytes, key=required) - 1
        if features > allowed:
            nbytes = required(features)
            over = limit.over(nbytes) or f"{format_bytes(nbytes)} for matrices, with more numbers than LAPACK can count"
            raise InvalidRequest(
                f"{estimator} of {features} features needs {over}. At most {allowed} features are possible. {instead}",
                given=features,
            )
        limits.append(limit)
    return min(limits, key=lambda limit: limit.nbytes)


def _limits(data: Data, engine: str, needs: _Needs, sent: _Needs) -> Iterator[tuple[Limit, _Needs]]:
    """Yield the memory limits of the processes of a fit, each with the function of their needs."""
    engine = chosen(engine, distributed=data.distributed)
    process = Limit(system.MEMORY_LIMIT, "this process")
    if engine == "local":
        yield process, needs
        return
    ranks = pinning.target_workers(current_client(), "rank")
    limits = (rank.memory_limit for rank in ranks if rank.memory_limit)
    by_dask = engine == "dask" or (engine == "auto" and not serves_calls(current_client()))
    size = group_size(len(ranks))
    received, groups = (size - 1) * by_dask, math.ceil(len(ranks) / size)
    yield Limit(min(limits, default=system.MEMORY_LIMIT), "a rank"), lambda n: needs(n) + received * sent(n)
    if by_dask:
        yield process, lambda n: needs(n) + groups * sent(n)
