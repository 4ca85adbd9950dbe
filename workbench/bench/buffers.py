"""The kinds of buffers that a bench sends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from workbench.errors import InvalidRequest
from workbench.gpu.tensors import on_host
from workbench.torch.context import require_torch


def _tensor(array: np.ndarray) -> Any:
    import torch

    return torch.from_numpy(array)


KINDS: Mapping[str, Callable[[Any], Any]] = {
    "numpy": lambda array: array,
    "memoryview": memoryview,
    "torch": _tensor,
    "cuda": lambda array: _tensor(array).cuda(),
    "bytes": lambda array: array.tobytes(),
}
"""The buffer of a NumPy array, by kind: with the memory of the array, except ``bytes``, which cannot be written, and
``cuda``, a tensor on a GPU."""
WRITABLE = tuple(kind for kind in KINDS if kind not in {"bytes", "cuda"})
"""The kinds into which MPI can receive."""


def add_option(add_argument: Callable[..., Any], kinds: Iterable[str]) -> None:
    """Add the option with which a user chooses the kind, by the method `add_argument` of a parser or of a group."""
    add_argument("--buffers", choices=[*kinds], default="numpy", help="kind of the buffers (default: %(default)s)")


def check(kind: str) -> None:
    """Raise `InvalidRequest` where a kind needs PyTorch or a GPU, and there is none."""
    if kind not in {"torch", "cuda"}:
        return
    require_torch()
    import torch

    if kind == "cuda" and not torch.cuda.is_available():
        raise InvalidRequest(
            "--buffers cuda: PyTorch finds no GPU here. Run this on a host with one, or pass --buffers torch, which "
            "measures tensors in the memory of the host.",
            option="buffers",
        )


def octets(buffer: Any) -> np.ndarray:
    """Return the bytes of a buffer of any kind, as an array of its memory, or of a copy if a GPU has the memory."""
    return np.frombuffer(on_host(buffer), np.uint8)
