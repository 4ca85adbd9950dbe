"""Rules of convolutions and poolings."""

# ruff: noqa: D103, PLR0917  (the functions and their arguments are those of PyTorch)
from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812  (its name in PyTorch's documents)

from workbench.torch.spatial.exchange import AXIS
from workbench.torch.spatial.layout import Kernel, Plan, adaptive
from workbench.torch.spatial.strip import CannotSplitError, Strip, rule
from workbench.torch.spatial.sums import stacked, total
from workbench.torch.spatial.windowed import Convolution, Recomputed, windowed


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


@rule("max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices")
def max_pooling(
    _function: Any,
    strip: Strip,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Strip:
    if return_indices:
        raise CannotSplitError("its indices are those of the whole image", "Use it without return_indices")
    count = of_images(strip)
    sizes, paddings, dilations = (numbers(each, count) for each in (kernel_size, padding, dilation))
    strides = numbers(stride, count) if stride else sizes
    plan = Kernel(sizes[0], strides[0], paddings[0], dilations[0]).plan(
        strip.height, strip.comm.size, ceil_mode=ceil_mode
    )
    pool = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}[count]
    options = {"kernel_size": sizes, "stride": strides, "padding": [0, *paddings[1:]], "dilation": dilations}
    operation = Recomputed(partial(pool, **options, ceil_mode=ceil_mode))
    return applied(strip, operation, plan, fill=-torch.inf)


@rule("avg_pool1d", "avg_pool2d", "avg_pool3d")
def average_pooling(
    function: Any,
    strip: Strip,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Strip:
    count = of_images(strip)
    sizes, paddings = numbers(kernel_size, count), numbers(padding, count)
    strides = numbers(stride, count) if stride else sizes
    kernel = Kernel(sizes[0], strides[0], paddings[0])
    plan = kernel.plan(strip.height, strip.comm.size, ceil_mode=ceil_mode)
    # Along the rows the mean is taken of all that the window has, also outside of the image ...
    options: dict[str, Any] = {"kernel_size": sizes, "stride": strides, "padding": [0, *paddings[1:]]}
    options |= {"ceil_mode": ceil_mode, "count_include_pad": count_include_pad}
    if count > 1:
        options["divisor_override"] = divisor_override
    found = applied(strip, Recomputed(partial(function, **options)), plan)
    if divisor_override is not None:
        return found
    # ... and then of the rows that count.
    margin = kernel.padding if count_include_pad else 0
    begins = torch.arange(plan.height, device=found.device)[found.rows] * kernel.stride - kernel.padding
    counted = (begins + kernel.size).clamp(max=strip.height + margin) - begins.clamp(min=-margin)
    factors = kernel.size / counted.to(found.dtype)
    return found * factors.view(-1, *[1] * (count - 1)) if bool((counted != kernel.size).any()) else found


@rule("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d")
def adaptive_average_pooling(_function: Any, strip: Strip, output_size: Any) -> Any:
    height, *others = _output(strip, output_size)
    found = strip.to_local()
    # The mean is a product with a matrix along each axis, which has fewer elements after each.
    for axis, length in reversed(list(enumerate(others, strip.axis + 1))):
        found = _means(found, axis, adaptive(found.shape[axis], length), 0)
    if height is None:
        return strip.like(found)
    return total(strip.comm, _means(found, strip.axis, adaptive(strip.height, height), strip.rows.start))


def _output(strip: Strip, output_size: Any) -> list[Any]:
    """Return the lengths of the result; None for the rows if they stay as they are."""
    sizes = numbers(output_size, of_images(strip)) if output_size is not None else [None] * of_images(strip)
    return [sizes[0], *(size or length for size, length in zip(sizes[1:], strip.shape[strip.axis + 1 :], strict=True))]


def _means(tensor: torch.Tensor, axis: int, windows: list[tuple[int, int]], start: int) -> torch.Tensor:
    """Return the part of a tensor in the means of windows along an axis, whose element 0 has the number `start`."""
    if windows == [(number, number + 1) for number in range(tensor.shape[axis])]:
        return tensor
    places = torch.arange(start, start + tensor.shape[axis], device=tensor.device)
    matrix = torch.stack(
        [((places >= first) & (places < end)).to(tensor.dtype) / (end - first) for first, end in windows]
    )
    return (tensor.movedim(axis, -1) @ matrix.T).movedim(-1, axis)


@rule("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
def adaptive_max_pooling(function: Any, strip: Strip, output_size: Any, return_indices: bool = False) -> Any:
    if return_indices:
        raise CannotSplitError("its indices are those of the whole image", "Use it without return_indices")
    height, *others = _output(strip, output_size)
    if height is None:
        raise CannotSplitError("an output without a number of rows has no rule", "Pass the number of rows")
    mine, own = strip.to_local(), strip.rows
    rows = []
    for begin, stop in adaptive(strip.height, height):
        first, end = max(begin, own.start), min(stop, own.stop)
        if first < end:
            rows.append(function(mine.narrow(strip.axis, first - own.start, end - first), (1, *others)))
        else:
            # The sum of no rows keeps this rank in the exchange of the gradients.
            nothing = mine.narrow(strip.axis, 0, 0).sum()
            rows.append(mine.new_full((*mine.shape[:2], 1, *others), -torch.inf) + nothing)
    return stacked(strip.comm, torch.cat(rows, strip.axis)).max(0).values
