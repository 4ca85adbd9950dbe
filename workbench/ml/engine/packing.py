"""Tuples of numbers and arrays in one buffer, so that one message carries all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def pack(value: Any) -> NDArray[np.float64]:
    """Return the numbers in an array, a number, or a tuple of these (also nested), as one vector.

    Integers are exact up to 2**53.
    """
    if not isinstance(value, tuple):
        return np.ravel(np.asarray(value, dtype=np.float64))
    return np.concatenate([pack(part) for part in value]) if value else np.empty(0)


def unpack(vector: NDArray[np.float64], like: Any) -> Any:
    """Return what `pack` has made a vector of.

    Parameters
    ----------
    vector
        As `pack` returned it for something of the same shape; arrays are views of it.
    like
        What the result looks like.
    """
    return _unpack(vector, 0, like)[0]


def _unpack(vector: NDArray[np.float64], start: int, like: Any) -> tuple[Any, int]:
    if not isinstance(like, tuple):
        shape = np.shape(like)
        end = start + int(np.prod(shape, dtype=int))
        return (vector[start:end].reshape(shape) if shape else float(vector[start])), end
    parts = []
    for part in like:
        value, start = _unpack(vector, start, part)
        parts.append(value)
    return tuple(parts), start
