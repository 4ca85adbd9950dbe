"""Memory of tensors, as mpi4py takes it; MPI gets a copy in the memory of the host of a tensor on a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from mpi4py import MPI

from workbench.errors import InvalidRequest
from workbench.gpu.tensors import to_host

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


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
