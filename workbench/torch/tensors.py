"""Placed blocks as tensors of PyTorch that share their memory."""

from __future__ import annotations

from typing import Any

from workbench.errors import InvalidRequest
from workbench.gpu.tensors import has_tensors
from workbench.torch.context import require_torch


def tensor(block: Any) -> Any:
    """Return a tensor that shares the memory of a block.

    Parameters
    ----------
    block : numpy.ndarray, pandas.DataFrame, pandas.Series or torch.Tensor
        Block of shape (rows, ...) of numbers or booleans. The columns of a frame are converted to their common type.

    Returns
    -------
    torch.Tensor
        Tensor of the same shape and type. It shares the memory of an array, so writes to the tensor change the block;
        a tensor of a read-only array must not be written to. Frames are copied if pandas copies them.

    Raises
    ------
    InvalidRequest
        If PyTorch is not installed, the block is sparse, or PyTorch has no such elements, for example text.

    Examples
    --------
    >>> tensor(np.eye(2))
    tensor([[1., 0.],
            [0., 1.]], dtype=torch.float64)
    """
    require_torch()
    import numpy as np
    import torch

    if isinstance(block, torch.Tensor):
        return block
    array = block.to_numpy() if hasattr(block, "to_numpy") else block
    if not isinstance(array, np.ndarray):
        raise InvalidRequest(
            f"tensor() takes a block of an array or a dataframe, not {type(array).__name__}. Convert the block first, "
            "a sparse matrix with toarray()."
        )
    if not has_tensors(array.dtype):
        raise InvalidRequest(
            f"PyTorch has no tensors of {array.dtype}. Convert the block first, for example with astype('float32')."
        )
    array = np.ascontiguousarray(array)
    # PyTorch has no read-only tensors, and only from_numpy warns of read-only arrays.
    return torch.from_numpy(array) if array.flags.writeable else torch.from_dlpack(array)
