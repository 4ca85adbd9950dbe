"""Rules of functions that make rows of others: resizing and padding."""
# ruff: noqa: D103, PLR0917  (the functions and their arguments are those of PyTorch)

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from workbench.torch.spatial.convolution import applied, numbers, of_images
from workbench.torch.spatial.exchange import AXIS
from workbench.torch.spatial.layout import Part, Plan, Window
from workbench.torch.spatial.strip import CannotSplitError, Strip, rule
from workbench.torch.spatial.windowed import Rows, redivided

_NEAREST, _LINEAR = ("nearest", "nearest-exact"), ("linear", "bilinear", "trilinear")


@dataclass(frozen=True)
class Blend:
    """Rows that are each a row of the window, or a weighted mean of two."""

    lower: torch.Tensor
    upper: torch.Tensor
    share: torch.Tensor
    """Weight of the upper row, of shape (rows, 1, ...)."""
    keeps = False

    def forward(self, window: torch.Tensor) -> torch.Tensor:
        """Return the rows."""
        lower = window.index_select(AXIS, self.lower)
        if self.upper is self.lower:
            return lower
        return lower.lerp_(window.index_select(AXIS, self.upper), self.share.to(window.dtype))

    def backward(self, gradient: torch.Tensor, _window: Any, _needs: Sequence[bool]) -> tuple[Any, ...]:
        """Return the gradient of the window."""
        shape = list(gradient.shape)
        shape[AXIS] = int(self.upper.max()) + 1 if len(self.upper) else 0
        whole = gradient.new_zeros(shape)
        if self.upper is self.lower:
            return (whole.index_add_(AXIS, self.lower, gradient),)
        upper = gradient * self.share.to(gradient.dtype)
        whole.index_add_(AXIS, self.upper, upper)
        return (whole.index_add_(AXIS, self.lower, torch.sub(gradient, upper, out=upper)),)


def blended(strip: Strip, position: torch.Tensor) -> Strip:
    """Return a strip whose row i is the one at `position[i]` of another one: between two rows the weighted mean.

    Parameters
    ----------
    strip
        Batch of images.
    position
        Position of each row of the result, on every rank; whole numbers or float64.
    """
    lower, upper = position.floor().long(), position.ceil().long()

    def part(first: int, end: int) -> Part:
        rows = slice(first, end)
        return Part(Window(int(lower[rows].min()), int(upper[rows].max()) + 1) if first < end else Window(0, 0))

    plan = Plan.of(len(position), strip.comm.size, part)
    rows, start = strip.like(strip.to_local(), height=plan.height).rows, plan.parts[strip.comm.rank].window.start
    low, high = ((end[rows] - start).to(strip.device) for end in (lower, upper))
    share = (position[rows] - lower[rows]).view(-1, *[1] * (strip.dim() - AXIS - 1)).to(strip.device)
    # All ranks have whole numbers, or none: `equal` of all rows.
    return applied(strip, Blend(low, low if torch.equal(lower, upper) else high, share), plan)


@rule("interpolate")
def interpolate(
    function: Any,
    strip: Strip,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Strip:
    count = of_images(strip)
    if mode not in {*_NEAREST, *_LINEAR} or antialias:
        raise CannotSplitError(
            f"mode={mode!r}{' with antialias' * antialias} has no rule", f"Use {', '.join((*_NEAREST, *_LINEAR))}"
        )
    options = {"mode": mode, "align_corners": align_corners, "recompute_scale_factor": recompute_scale_factor}

    def resized(tensor: torch.Tensor, first: Any, others: Any) -> torch.Tensor:
        """Resize a tensor, its rows by `first`."""
        sizes, factors = None, None
        if size is not None:
            sizes = [first or numbers(size, count)[0], *(others or numbers(size, count)[1:])]
        else:
            scale = [scale_factor] * count if isinstance(scale_factor, int | float) else list(scale_factor)
            factors = [float(first or scale[0]), *(others or scale[1:])]
        found: torch.Tensor = function(tensor, sizes, factors, **options)
        return found

    # PyTorch resizes the numbers of the rows on the device of the strip, so that the positions are its own there.
    precise = torch.float64 if strip.dtype == torch.float64 or mode in _LINEAR else torch.float32
    probe = torch.arange(strip.height, dtype=precise, device=strip.device).view(1, 1, -1, *[1] * (count - 1))
    rows = blended(strip, resized(probe, None, [1] * (count - 1)).view(-1).double().cpu())
    if count == 1:
        return rows
    tensor = rows.to_local()
    if tensor.shape[AXIS]:
        return rows.like(resized(tensor, tensor.shape[AXIS] if size is not None else 1.0, None))
    # PyTorch refuses tensors without rows.
    width = resized(tensor.new_empty(1, 1, 1, *tensor.shape[AXIS + 1 :]), 1, None).shape[AXIS + 1 :]
    return rows.like(_no_rows(tensor, tensor.shape[1], *width))


def _no_rows(tensor: torch.Tensor, channels: int, *width: int) -> torch.Tensor:
    """Return a result without rows: the sum of none keeps this rank in the exchange of the gradients."""
    return tensor.new_zeros(len(tensor), channels, 0, *width) + tensor.sum()


@rule("pad")
def padded(function: Any, strip: Strip, pad: Any, mode: str = "constant", value: float | None = None) -> Strip:
    behind = 2 * (strip.dim() - strip.axis - 1)
    others, (before, after) = list(pad[:behind]), (*pad[behind:], 0, 0)[:2]
    if any(pad[behind + 2 :]):
        raise CannotSplitError("the layer pads the batch or the channels", "Pad these axes outside of the net")
    if before or after:
        of_images(strip)
        strip = _padded_rows(strip, before, after, mode, value or 0.0)
    if not any(others):
        return strip
    if not strip.to_local().shape[strip.axis]:
        # PyTorch refuses to reflect or repeat the columns of no rows.
        mode, value = "constant", None
    if mode != "constant":
        others += [0] * (2 * (strip.dim() - AXIS) - len(others))
    return strip.like(function(strip.to_local(), others, mode, value))


def _padded_rows(strip: Strip, before: int, after: int, mode: str, fill: float) -> Strip:
    last = strip.height - 1
    if mode == "constant":
        height = strip.height + before + after
        plan = Plan.of(
            height,
            strip.comm.size,
            lambda first, end: Part(Window.clipped(first - before, end - before, strip.height)),
        )
        return applied(strip, Rows(), plan, fill=fill)
    if mode not in {"reflect", "replicate"} or (mode == "reflect" and max(before, after) > last):
        raise CannotSplitError(
            f"mode={mode!r} of {before} and {after} rows has no rule", "Use mode 'constant', 'replicate' or 'reflect'"
        )
    source = torch.arange(-before, strip.height + after, device="cpu")
    if mode == "reflect":
        source = last - (last - source.abs()).abs()
    return blended(strip, source.clamp(0, last))


@rule("pixel_shuffle")
def pixel_shuffle(function: Any, strip: Strip, upscale_factor: int) -> Strip:
    of_images(strip)
    have, tensor = [upscale_factor * row for row in strip.have], strip.to_local()
    if tensor.shape[AXIS]:
        shuffled = function(tensor, upscale_factor)
    else:
        # PyTorch has a gradient of another shape.
        shuffled = _no_rows(tensor, tensor.shape[1] // upscale_factor**2, tensor.shape[-1] * upscale_factor)
    return strip.like(redivided(strip.comm, shuffled, have), height=have[-1])
