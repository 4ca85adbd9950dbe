"""Matrices of features x features, held against the memory of a rank before there is one."""

from __future__ import annotations

import bisect
from collections.abc import Callable
from typing import TYPE_CHECKING

from dask.utils import format_bytes
from distributed import system

from workbench.errors import InvalidRequest
from workbench.ml.engines import chosen
from workbench.ml.gram import COUNTED
from workbench.placing import pinning

if TYPE_CHECKING:
    from workbench.ml.data import Data

# A matrix that is smaller has room anywhere, and nobody is asked.
_SMALL = 256 << 20


def check(
    estimator: str, data: Data, engine: str, needs: Callable[[int], int], instead: str, *, most: int = COUNTED
) -> None:
    """Refuse a fit whose matrices have no room.

    Parameters
    ----------
    estimator
        Name of the class, for the message.
    data, engine
        What is fitted, and on which engine.
    needs
        Returns the bytes of the matrices, at most, for a number of features.
    instead
        What else can be done.
    most
        Not more features than these, whatever the memory.

    Raises
    ------
    InvalidRequest
        If they are over the memory limit of a rank, or of this process where the fit is made here.
    """
    features = data.X.shape[1]
    if needs(features) < _SMALL:
        return
    limit, whose = _limit(data, engine)
    most = bisect.bisect_right(range(most + 1), limit, key=needs) - 1
    if features > most:
        raise InvalidRequest(
            f"{estimator} of {features} features needs {format_bytes(needs(features))} for matrices of its sums, "
            f"and the memory limit of {whose} is {format_bytes(limit)}: at most {most} features have room there. "
            f"{instead}"
        )


def _limit(data: Data, engine: str) -> tuple[int, str]:
    """Return the least memory limit of what takes part in a fit, in bytes, and whose it is."""
    if chosen(engine, distributed=data.distributed) == "local":
        return system.MEMORY_LIMIT, "this process"
    limits = (rank.memory_limit for rank in pinning.targets(pinning.connected(None), "rank"))
    return min((limit for limit in limits if limit), default=system.MEMORY_LIMIT), "a rank"
