"""Rules of losses and of normalizations, whose means are those of all rows."""

# ruff: noqa: D103, PLR0917  (the functions and their arguments are those of PyTorch)
from __future__ import annotations

# ruff: noqa: D103  (the functions and their arguments are those of PyTorch)
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable
from torch.nn import functional as F  # noqa: N812  (its name in PyTorch's documents)

from workbench.torch.reductions import all_reduce
from workbench.torch.spatial.convolution import of_images
from workbench.torch.spatial.strip import CannotSplitError, Strip, first_strip, local, rule
from workbench.torch.spatial.sums import total

if TYPE_CHECKING:
    from mpi4py import MPI


class _Normalized(torch.autograd.Function):
    """Batch normalization of the rows of all ranks, which keeps its input only."""

    @staticmethod
    def forward(ctx: Any, comm: MPI.Intracomm, count: int, eps: float, tensor: Any, weight: Any, bias: Any) -> Any:
        dims = [axis for axis in range(tensor.dim()) if axis != 1]
        own = tensor.numel() // tensor.shape[1]
        precise = tensor if tensor.dtype == torch.float64 else tensor.float()
        zeros = precise.new_zeros(tensor.shape[1])
        var, mean = torch.var_mean(precise, dims, correction=0) if own else (zeros, zeros)
        means = mean * own
        all_reduce(comm, [means], dist.ReduceOp.SUM)
        means /= count
        # The squares are about the mean of all ranks (Chan, Golub and LeVeque, 1983).
        variances = own * (var + (mean - means) ** 2)
        all_reduce(comm, [variances], dist.ReduceOp.SUM)
        variances /= count
        ctx.comm, ctx.count = comm, count
        ctx.save_for_backward(tensor, weight, means, (variances + eps).rsqrt())
        ctx.mark_non_differentiable(means, variances)
        ctx.has_bias = bias is not None
        result = F.batch_norm(tensor, means, variances, weight, bias, eps=eps) if own else tensor.clone()
        return result, means, variances

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Any, *_: Any) -> Any:
        tensor, weight, means, scale = ctx.saved_tensors
        dims = [axis for axis in range(tensor.dim()) if axis != 1]
        shape = [-1 if axis == 1 else 1 for axis in range(tensor.dim())]
        centered = tensor - means.view(shape).to(tensor.dtype)
        of_bias = gradient.sum(dims)
        of_weight = _products(gradient, centered) * scale.to(tensor.dtype)
        sums = torch.stack([of_bias, of_weight])
        all_reduce(ctx.comm, [sums], dist.ReduceOp.SUM)
        factor = (scale if weight is None else scale * weight).to(tensor.dtype)
        first, second = sums * factor / ctx.count
        of_tensor = centered.mul_((-second * scale.to(tensor.dtype)).view(shape)).sub_(first.view(shape))
        of_tensor.addcmul_(gradient, factor.view(shape))
        return None, None, None, of_tensor, None if weight is None else of_weight, of_bias if ctx.has_bias else None


def _products(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return the sum of products for each channel, without a tensor of all products."""
    sums = [(a.reshape(len(a), -1) * b.reshape(len(b), -1)).sum(1) for a, b in zip(one, other, strict=True)]
    return torch.stack(sums).sum(0)


@rule("batch_norm")
def batch_norm(
    function: Any,
    strip: Strip,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Strip:
    if not training:
        return strip.like(function(strip.to_local(), running_mean, running_var, weight, bias, eps=eps))
    count = strip.numel() // strip.shape[1]
    if count < 2:
        raise CannotSplitError("a batch of one value for each channel has no variance", "Pass more images")
    result, mean, var = _Normalized.apply(strip.comm, count, eps, strip.to_local(), weight, bias)
    if running_mean is not None:
        running_mean.lerp_(mean.to(running_mean.dtype), momentum)
        running_var.lerp_(var.to(running_var.dtype) * (count / (count - 1)), momentum)
    return strip.like(result)


@rule("instance_norm")
def instance_norm(
    function: Any,
    strip: Strip,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Strip:
    if not use_input_stats:
        return strip.like(function(strip.to_local(), running_mean, running_var, weight, bias, False, momentum, eps))
    if running_mean is not None:
        raise CannotSplitError(
            "the layer tracks means of the batch", "Use track_running_stats=False, or batch normalization"
        )
    each = [None if values is None else values.repeat(strip.shape[0]) for values in (weight, bias)]
    return _grouped(strip, strip.shape[0] * strip.shape[1], eps, *each)


@rule("group_norm")
def group_norm(
    _function: Any, strip: Strip, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Strip:
    found: Any = _grouped(strip, strip.shape[0] * num_groups, eps)
    shape = (-1, *[1] * of_images(strip))
    found = found if weight is None else found * weight.view(shape)
    found = found if bias is None else found + bias.view(shape)
    return strip.like(found.to_local())


def _grouped(strip: Strip, groups: int, eps: float, weight: Any = None, bias: Any = None) -> Strip:
    """Normalize groups of channels of each image by their own means."""
    of_images(strip)
    tensor = strip.to_local()
    channels = strip.shape[0] * strip.shape[1] // groups
    grouped = tensor.reshape(1, groups, channels * tensor.shape[2], *tensor.shape[3:])
    result, _, _ = _Normalized.apply(strip.comm, strip.numel() // groups, eps, grouped, weight, bias)
    return strip.like(result.view(tensor.shape))


_LOSSES = (
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "huber_loss", "l1_loss", "mse_loss", "poisson_nll_loss",
    "smooth_l1_loss", "soft_margin_loss",
)  # fmt: skip


@rule(*_LOSSES)
def of_elements(function: Any, *args: Any, reduction: str = "mean", **options: Any) -> Any:
    strip = first_strip((*args, *options.values()))
    if options.get("weight") is not None and "entropy" not in function.__name__:
        raise CannotSplitError("weights have no rule", "Multiply the losses of reduction='none' by the weights")
    given = [local(value, strip) for value in args]
    loss = partial(function, *given, **{name: local(value, strip) for name, value in options.items()})
    return _of_image(loss, strip, reduction, strip.to_local().numel(), strip.axis)


@rule("cross_entropy", "nll_loss")
def of_classes(
    function: Any, strip: Strip, target: Any, weight: Any = None, reduction: str = "mean", **options: Any
) -> Any:
    target = local(target, strip)
    # Not `local` of the weights: they are those of classes, also where the length of a sequence is the last axis.
    loss = partial(function, strip.to_local(), target, weight, **options)
    if target.is_floating_point():
        counted = target.numel() / target.shape[1]
    else:
        valid = target[target != options.get("ignore_index", -100)]
        counted = valid.numel() if weight is None else float(weight.double()[valid].sum())
    return _of_image(loss, strip, reduction, counted, strip.axis - 1)


def _of_image(loss: Any, strip: Strip, reduction: str, counted: float, axis: int) -> Any:
    """Return the loss of the whole image; `counted` is what a mean over the rows of this rank divides by."""
    if reduction not in {"none", "mean", "sum"}:
        raise CannotSplitError(f"reduction={reduction!r} has no rule", "Use 'mean', 'sum' or 'none'")
    if reduction == "none":
        return strip.like(loss(reduction="none"), axis=axis)
    if reduction == "sum":
        return total(strip.comm, loss(reduction="sum"))
    # Means in proportion, because sums and counts may exceed float16. The mean of nothing is no number, its sum is 0.
    mean = loss(reduction="mean" if counted else "sum")
    share = counted / total(strip.comm, torch.tensor(counted, dtype=torch.float64))
    return total(strip.comm, mean.double() * share).to(mean.dtype)
