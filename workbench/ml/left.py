"""What the parts of a fit leave in their processes, until tasks take it over: one array per block."""

from __future__ import annotations

import itertools
import threading
import uuid
from typing import TYPE_CHECKING, Any

from workbench.errors import RankLost

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from workbench.ml.data import Data

# Fits that may leave something in a process at the same time. A fit that was interrupted in between is not asked for,
# and goes when there are more.
_MOST = 16

_left: dict[str, dict[int, Any]] = {}
_lock = threading.Lock()


def leave(fit: str, start: int, value: Any) -> None:
    """Leave a value.

    Parameters
    ----------
    fit
        Identity of the fit.
    start
        Number of the first row of the block.
    value
        What is left.
    """
    with _lock:
        _left.setdefault(fit, {})[start] = value
        while len(_left) > _MOST:
            del _left[next(iter(_left))]


def take(fit: str, start: int) -> Any:
    """Return what a part has left, and keep it no more.

    Raises
    ------
    RankLost
        If there is nothing: the process is another one.
    """
    with _lock:
        its = _left.get(fit, {})
        if start not in its:
            raise RankLost(
                "the labels of a fit were on a rank that has been lost: model.predict(X) assigns the rows again"
            )
        value = its.pop(start)
        if not its:
            del _left[fit]
        return value


def collect(fit: str, empty: NDArray[Any], found: Any, data: Data) -> tuple[Any, Any]:
    """Return what a fit has found, and what its parts have left: an array, or a placed Dask array.

    Parameters
    ----------
    fit
        Identity of the fit.
    empty
        An array of the kind that was left, one value per row, without rows.
    found, data
        As of `workbench.ml.task.Task.after`.
    """
    if not data.distributed:
        return found, take(fit, 0)
    from workbench.ml.placed import whereabouts
    from workbench.placing import pinning, source

    client, pins = whereabouts(data.X)
    sizes = data.X.chunks[0]
    starts = [0, *itertools.accumulate(sizes)]
    name = source.placed_name(str(source.placed_per(data.X)), uuid.uuid4().int, 0)
    calls = [
        pinning.Call((name, number), take, (fit, start), pin=pin)
        for number, (start, pin) in enumerate(zip(starts, pins, strict=False))
    ]
    keys = [call.key for call in calls]
    futures = pinning.submit(client, calls, keys)
    return found, source.collection(empty, name, dict(zip(keys, futures, strict=True)), sizes)
