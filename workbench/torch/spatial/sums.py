"""Sums and means over the ranks, with their gradients.

Each rank computes the loss, and what is differentiated is the sum of these losses: an operation that sends values has
the adjoint that sends gradients back. `Averaged` divides by the number of ranks at the weights, as
`DistributedDataParallel` does, so the gradient of a weight is right whether it is used on strips or on whole tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from workbench.torch.buffers import array, flat, to_write, write
from workbench.torch.reductions import all_reduce

if TYPE_CHECKING:
    from mpi4py import MPI


def _summed(comm: MPI.Intracomm, tensor: torch.Tensor) -> torch.Tensor:
    total = tensor.clone(memory_format=torch.contiguous_format)
    all_reduce(comm, [total], dist.ReduceOp.SUM)
    return total


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, comm: MPI.Intracomm, part: Any) -> Any:
        ctx.comm = comm
        return _summed(comm, part)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Any) -> Any:
        return None, _summed(ctx.comm, gradient)


def total(comm: MPI.Intracomm, part: torch.Tensor) -> torch.Tensor:
    """Return the sum of the tensors of all ranks, on every rank; collective, and so is its gradient."""
    found: torch.Tensor = _Sum.apply(comm, part)
    return found


class _Stack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, comm: MPI.Intracomm, part: Any) -> Any:
        ctx.comm = comm
        stack = part.new_empty((comm.size, *part.shape))
        row = to_write(stack)
        comm.Allgather(array(flat(part)), array(row))
        write(row, stack)
        return stack

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Any) -> Any:
        return None, _summed(ctx.comm, gradient)[ctx.comm.rank]


def stacked(comm: MPI.Intracomm, part: torch.Tensor) -> torch.Tensor:
    """Return the tensors of all ranks, which have one shape, along a new first axis; collective, as its gradient."""
    found: torch.Tensor = _Stack.apply(comm, part)
    return found


class _Averaged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, comm: MPI.Intracomm, *weights: Any) -> Any:
        ctx.comm = comm
        ctx.set_materialize_grads(False)
        return tuple(weight.view_as(weight) for weight in weights)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:
        # Copies: autograd may give one memory to several weights.
        means = [each if each is None else each.clone(memory_format=torch.contiguous_format) for each in gradients]
        all_reduce(ctx.comm, [each for each in means if each is not None], dist.ReduceOp.AVG)
        return None, *means


def averaged(comm: MPI.Intracomm, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return weights whose gradients are the means over the ranks, in one message for each type of elements."""
    return dict(zip(weights, _Averaged.apply(comm, *weights.values()), strict=True)) if weights else {}
