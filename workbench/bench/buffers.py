"""The kinds of buffers that a bench sends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np


def _tensor(array: np.ndarray) -> Any:
    import torch

    return torch.from_numpy(array)


KINDS: Mapping[str, Callable[[Any], Any]] = {
    "numpy": lambda array: array,
    "memoryview": memoryview,
    "torch": _tensor,
    "bytes": lambda array: array.tobytes(),
}
"""The buffer of a NumPy array, by kind: with the memory of the array, except ``bytes``, which cannot be written."""
WRITABLE = tuple(kind for kind in KINDS if kind != "bytes")
"""The kinds into which MPI can receive."""


def add_option(add_argument: Callable[..., Any], kinds: Iterable[str]) -> None:
    """Add the option with which a user chooses the kind, by the method `add_argument` of a parser or of a group."""
    add_argument("--buffers", choices=[*kinds], default="numpy", help="kind of the buffers (default: %(default)s)")


def octets(buffer: Any) -> np.ndarray:
    """Return the bytes of a buffer of any kind, as an array of its memory."""
    return np.frombuffer(buffer.numpy() if hasattr(buffer, "numpy") else buffer, np.uint8)
