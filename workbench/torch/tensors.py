"""Placed blocks as tensors of PyTorch that share their memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from mpi4py import MPI

from workbench.errors import InvalidRequest
from workbench.gpu.tensors import has_tensors, to_host
from workbench.torch.context import require_torch

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


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


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements of a tensor in one row: its own memory where the host has it in a row, else a copy.

    Raises
    ------
    InvalidRequest
        If the tensor is neither in the memory of the host nor in that of a GPU.
    """
    row = row_of(tensor)
    return row if row.is_cpu else to_host(row)


def row_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements of a tensor in one row, where the tensor is: its own memory if contiguous, else a copy.

    Raises
    ------
    InvalidRequest
        If the tensor is neither in the memory of the host nor in that of a GPU.
    """
    if not (tensor.is_cpu or tensor.is_cuda):
        raise InvalidRequest(
            f"a tensor is on {tensor.device}, and a process group of the workbench takes tensors in the memory of the "
            "host or of a GPU (cuda). Pass tensor.cpu()."
        )
    row = tensor.detach().resolve_conj().resolve_neg()
    # A row without `reshape`, because small messages take a few microseconds.
    return row if row.dim() == 1 and row.is_contiguous() else row.reshape(-1).contiguous()


def to_write(tensor: torch.Tensor) -> torch.Tensor:
    """Return a row for all elements that a tensor will get: its own memory where the host has it in a row."""
    return flat(tensor) if tensor.is_cpu else torch.empty_like(row_of(tensor), device="cpu", pin_memory=True)


def array(row: torch.Tensor) -> npt.NDArray[Any]:
    """Return the memory of a row of elements as bytes, whatever their type."""
    view: npt.NDArray[np.uint8] = row.view(torch.uint8).numpy()
    return view


def message(row: torch.Tensor) -> list[Any]:
    """Return a row of elements as a message of bytes."""
    return [array(row), MPI.BYTE]


def write(row: torch.Tensor, tensor: torch.Tensor) -> None:
    """Bring a row of elements into a tensor, unless the row is the memory of that tensor."""
    if row.data_ptr() != tensor.data_ptr() or not tensor.is_contiguous():
        with torch.no_grad():
            tensor.copy_(row.view(tensor.shape))
