"""Rules of losses: the loss of the whole image, on every rank."""
# ruff: noqa: D103  (the functions and their arguments are those of PyTorch)

from __future__ import annotations

from typing import Any

import torch

from workbench.torch.spatial.strip import CannotSplitError, Strip, first_strip, local, rule
from workbench.torch.spatial.sums import total

_LOSSES = (
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "huber_loss", "l1_loss", "mse_loss", "poisson_nll_loss",
    "smooth_l1_loss", "soft_margin_loss",
)  # fmt: skip


@rule(*_LOSSES)
def of_elements(function: Any, *args: Any, **options: Any) -> Any:
    reduction = options.pop("reduction", "mean")
    strip = first_strip((*args, *options.values()))
    if options.get("weight") is not None and "entropy" not in function.__name__:
        raise CannotSplitError("weights have no rule", "Multiply the losses of reduction='none' by the weights")
    found = _local_loss(function, strip, args, options, reduction)
    if reduction == "none":
        return strip.like(found)
    return _reduced(strip, found, torch.tensor(float(strip.to_local().numel())), reduction)


@rule("cross_entropy", "nll_loss")
def of_classes(function: Any, strip: Strip, target: Any, weight: Any = None, **options: Any) -> Any:
    reduction = options.pop("reduction", "mean")
    indices = not target.is_floating_point()
    target = local(target, strip)
    found = _local_loss(function, strip, (strip, target, weight), options, reduction)
    if reduction == "none":
        return strip.like(found, axis=strip.axis - 1)
    if not indices:
        counted = torch.tensor(target.numel() / target.shape[1])
    else:
        valid = target[target != options.get("ignore_index", -100)]
        counted = torch.tensor(float(len(valid))) if weight is None else weight[valid].sum()
    return _reduced(strip, found, counted, reduction)


def _local_loss(function: Any, strip: Strip, args: Any, options: dict[str, Any], reduction: str) -> Any:
    if reduction not in {"none", "mean", "sum"}:
        raise CannotSplitError(f"reduction={reduction!r} has no rule", "Use 'mean', 'sum' or 'none'")
    options = {name: local(value, strip) for name, value in options.items()}
    # `mean` of the rows of a rank is not that of the image.
    given = reduction if reduction == "none" else "sum"
    return function(*(local(value, strip) for value in args), **options, reduction=given)


def _reduced(strip: Strip, found: torch.Tensor, counted: torch.Tensor, reduction: str) -> torch.Tensor:
    loss = total(strip.comm, found)
    return loss / total(strip.comm, counted.to(loss.dtype)) if reduction == "mean" else loss
