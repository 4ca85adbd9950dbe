"""Rules of losses: the loss of the whole image, on every rank."""
# ruff: noqa: D103  (the functions and their arguments are those of PyTorch)

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from workbench.torch.spatial.strip import CannotSplitError, Strip, first_strip, local, rule
from workbench.torch.spatial.sums import total

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
