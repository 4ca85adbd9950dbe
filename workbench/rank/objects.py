"""Objects of classes of the notebook on ranks: `pickle` sends the names of classes, which other ranks do not find."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import cloudpickle


def send_by_value() -> None:
    """Let mpi4py's object methods and `multiprocessing` send these objects with their classes and functions."""
    from mpi4py import MPI

    MPI.pickle.__init__(_or_by_value(pickle.dumps), None, pickle.HIGHEST_PROTOCOL)  # type: ignore[misc]
    ForkingPickler.dumps = _or_by_value(ForkingPickler.dumps)  # type: ignore[method-assign]


def _or_by_value(dumps: Callable[..., Any]) -> Callable[..., Any]:
    def dumps_or_by_value(obj: Any, protocol: int | None = None, **options: Any) -> Any:
        try:
            return dumps(obj, protocol, **options)
        except (pickle.PicklingError, AttributeError):
            # Without options: a callback for buffers may have those of the failed attempt, which `loads` would read as
            # those of this one.
            return cloudpickle.dumps(obj, protocol)

    return dumps_or_by_value
