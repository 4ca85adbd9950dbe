"""Rows that were placed on a device, as a part of a fit reads rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from workbench.gpu.tensors import on_host


class TensorRows:
    """Rows on a device; the host gets a copy of what it reads.

    Parameters
    ----------
    tensor
        Tensor of PyTorch of shape (rows, features).
    """

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor
        self.shape: tuple[int, ...] = tuple(tensor.shape)
        self.dtype = np.dtype(str(tensor.dtype).removeprefix("torch."))

    def __getitem__(self, part: Any) -> Any:
        """Return some rows as a NumPy array; `part` is a slice, or numbers of rows."""
        return on_host(self.tensor[part])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """Return all rows as a NumPy array."""
        return np.array(on_host(self.tensor), dtype, copy=copy) if copy else np.asarray(on_host(self.tensor), dtype)
