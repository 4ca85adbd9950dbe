"""Rules of convolutions."""
# ruff: noqa: D103, PLR0917  (the functions and their arguments are those of PyTorch)

from __future__ import annotations

from typing import Any

import torch

from workbench.torch.spatial.exchange import AXIS
from workbench.torch.spatial.layout import Kernel, Plan
from workbench.torch.spatial.strip import CannotSplitError, Strip, rule
from workbench.torch.spatial.windowed import Convolution, windowed


def numbers(value: Any, count: int) -> list[int]:
    """Return an option of a layer for each spatial axis."""
    values = [value] if isinstance(value, int) else list(value)
    return values * count if len(values) == 1 else values


def of_images(strip: Strip) -> int:
    """Return the number of spatial axes of a batch of images."""
    if strip.axis != AXIS or strip.dim() < AXIS + 1:
        raise CannotSplitError(
            f"the input has the shape {tuple(strip.shape)} and its rows on axis {strip.axis}",
            "Pass images with an axis of the batch and an axis of the channels, with unsqueeze(0) if needed",
        )
    return strip.dim() - AXIS


def applied(strip: Strip, operation: Any, plan: Plan, *weights: Any, fill: float = 0.0) -> Strip:
    """Return the result of an operation on windows of rows."""
    if plan.height < 1:
        raise CannotSplitError(f"the image has {strip.height} rows, fewer than the layer needs", "Pass a larger image")
    rows = windowed(strip.comm, operation, plan, strip.to_local(), *weights, have=strip.have, fill=fill)
    return strip.like(rows, height=plan.height)


def lowered(strip: Strip, *weights: torch.Tensor | None) -> tuple[Any, ...]:
    """Return a strip and weights in the precision that `torch.autocast` has for convolutions."""
    kind = strip.device.type
    if not torch.is_autocast_enabled(kind):
        return strip, *weights
    dtype = torch.get_autocast_dtype(kind)
    # As in PyTorch: double precision is kept.
    rows, *others = (
        each if each is None or each.dtype == torch.float64 else each.to(dtype) for each in (strip.to_local(), *weights)
    )
    return strip.like(rows), *others


@rule("conv1d", "conv2d", "conv3d")
def convolution(
    _function: Any,
    strip: Strip,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Strip:
    count = of_images(strip)
    sizes, strides, dilations = weight.shape[2:], numbers(stride, count), numbers(dilation, count)
    if padding == "same":
        reaches = [dilation * (size - 1) for dilation, size in zip(dilations, sizes, strict=True)]
        if any(reach % 2 for reach in reaches):
            raise CannotSplitError("padding='same' of an even kernel is not symmetric", "Pass the padding as numbers")
        padding = [reach // 2 for reach in reaches]
    paddings = numbers(0 if padding == "valid" else padding, count)
    plan = Kernel(sizes[0], strides[0], paddings[0], dilations[0]).plan(strip.height, strip.comm.size)
    operation = Convolution(
        strides, [0, *paddings[1:]], dilations, transposed=False, output_padding=[0] * count, groups=groups
    )
    strip, weight, bias = lowered(strip, weight, bias)
    return applied(strip, operation, plan, weight, bias)


@rule("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def transposed_convolution(
    _function: Any,
    strip: Strip,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Strip:
    count = of_images(strip)
    strides, paddings, dilations, more = (numbers(each, count) for each in (stride, padding, dilation, output_padding))
    kernel = Kernel(weight.shape[2], strides[0], paddings[0], dilations[0])
    plan = kernel.transposed(strip.height, strip.comm.size, more[0])
    operation = Convolution(
        strides, [0, *paddings[1:]], dilations, transposed=True, output_padding=[0, *more[1:]], groups=groups
    )
    strip, weight, bias = lowered(strip, weight, bias)
    return applied(strip, operation, plan, weight, bias)
