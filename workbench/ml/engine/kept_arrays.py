"""Arrays that the parts of a fit leave on their ranks, as placed Dask arrays, and a model applied to blocks.

A part leaves arrays in its process, and a pinned Dask task per block takes them over. They stay on the rank for as long
as the placed array exists, even if the block of the rows is released.
"""

from __future__ import annotations

import itertools
import pickle
import threading
import uuid
from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np

from workbench.errors import RankLost

if TYPE_CHECKING:
    from numpy.typing import NDArray


# Maximum number of fits with arrays left in a process. The arrays of an interrupted fit are dropped beyond this number.
_MAX_FITS = 16

# By fit, then by the first row of the block and the number of the array.
_left: dict[str, dict[tuple[int, int], NDArray[Any]]] = {}
_lock = threading.Lock()


class Keeps:
    """A part that keeps arrays of its rows after the fit."""

    _start: int

    def kept(self) -> tuple[NDArray[Any], ...]:
        """Return arrays like `workbench.ml.engine.mpi_parts.Task.kept`, with a row for each row of the block."""
        raise NotImplementedError

    def leave(self, fit: str) -> float:
        """Leave the arrays of `kept` in this process, under the identity of the fit."""
        arrays = {(self._start, number): array for number, array in enumerate(self.kept()) if array.shape[0]}
        with _lock:
            _left.setdefault(fit, {}).update(arrays)
            while len(_left) > _MAX_FITS:
                del _left[next(iter(_left))]
        return 0.0


def take(fit: str, start: int, number: int) -> NDArray[Any]:
    """Remove and return an array that the part of the block with this first row has left.

    Raises
    ------
    RankLost
        If the process has no such array, since the rank was restarted.
    """
    with _lock:
        arrays = _left.get(fit, {})
        if (start, number) not in arrays:
            raise RankLost(
                "an array of a fit on a rank, for example labels_, was lost with the rank. Repeat the fit, or call "
                "model.predict(X) of the fitted model."
            )
        array = arrays.pop((start, number))
        if not arrays:
            del _left[fit]
        return array


def collect(fit: str, like: Sequence[NDArray[Any]], X: Any, sizes: Sequence[int]) -> tuple[Any, ...]:
    """Return the arrays of the parts as placed Dask arrays, with blocks beside the blocks of X.

    Parameters
    ----------
    fit
        Identity of the fit.
    like
        An empty array like each array of a part.
    X
        The placed rows of the fit.
    sizes
        Number of rows of the arrays of each block.
    """
    from workbench.placement import pinning, sources
    from workbench.placement.place import PlacedBlocks

    placed = PlacedBlocks.of(X)
    identity, starts = uuid.uuid4().int, [0, *itertools.accumulate(X.chunks[0])][:-1]
    block_pins = [pinning.Pin(pin.address, size) for pin, size in zip(placed.pins, sizes, strict=True)]
    collections = []
    for number, empty in enumerate(like):
        name = sources.placed_name(placed.per, identity, number)
        calls = [
            # A block without rows has the first row of the next block, and leaves no array.
            pinning.PinnedTask(
                (name, block, *(0,) * (empty.ndim - 1)),
                take if pin.rows else copy,
                (fit, start, number) if pin.rows else (empty,),
                pin=pin,
            )
            for block, (start, pin) in enumerate(zip(starts, block_pins, strict=True))
        ]
        keys = [call.key for call in calls]
        graph = dict(zip(keys, pinning.submit(placed.client, calls, keys), strict=True))
        collections.append(sources.collection(empty, name, graph, sizes))
    return tuple(collections)


class Applied:
    """A method of a model that is called with blocks.

    Parameters
    ----------
    model
        A fitted estimator.
    method
        Name of the method.
    empty
        The result of a block without rows; None: the result of the method.
    """

    def __init__(self, model: Any, method: str, empty: Any = None) -> None:
        self._model, self._method, self._empty = cloudpickle.dumps(model), method, empty
        self.__name__ = method

    def __call__(self, block: Any) -> Any:
        """Return the result of a block."""
        if self._empty is not None and not block.shape[0]:
            return self._empty
        return getattr(pickle.loads(self._model), self._method)(block)  # noqa: S301  (it comes from `__init__`)


class AppliedToNumbered(Applied):
    """A method of a model that is called with blocks and the numbers of their rows."""

    def __call__(self, block: Any, block_info: Any = None) -> Any:
        """Return the result of a block."""
        rows = np.arange(*block_info[0]["array-location"][0])
        return getattr(pickle.loads(self._model), self._method)(block, rows)  # noqa: S301  (as `Applied.__call__`)
