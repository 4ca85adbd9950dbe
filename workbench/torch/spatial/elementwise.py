"""Rules of functions that look at one element, or along axes other than that of the rows."""
# ruff: noqa: D103  (the functions and their arguments are those of PyTorch)

from __future__ import annotations

from typing import Any

import torch

from workbench.torch.spatial.strip import CannotSplitError, Strip, first_strip, local, rule
from workbench.torch.spatial.sums import total

_ELEMENTWISE = (
    "abs", "add", "addcdiv", "addcmul", "bfloat16", "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "ceil",
    "celu", "clamp", "clamp_max", "clamp_min", "clone", "contiguous", "cos", "detach", "div", "double", "elu",
    "empty_like", "eq", "erf", "exp", "expm1", "fill", "float", "floor", "floor_divide", "ge", "gelu", "gt", "half",
    "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "isfinite", "isnan", "le", "leaky_relu", "lerp", "log",
    "log1p", "logical_and", "logical_not", "logical_or", "logit", "logsigmoid", "lt", "masked_fill", "maximum",
    "minimum", "mish", "mul", "ne", "neg", "ones_like", "pow", "__rdiv__", "reciprocal", "relu", "relu6", "remainder",
    "requires_grad", "round", "__rpow__", "rsqrt", "rsub", "__rsub__", "selu", "sigmoid", "sign", "silu", "sin",
    "softplus", "softshrink", "softsign", "sqrt", "square", "sub", "tan", "tanh", "tanhshrink", "threshold",
    "_threshold", "to", "true_divide", "type_as", "where", "zeros_like",
)  # fmt: skip
_RANDOM = ("alpha_dropout", "dropout", "rand_like", "randn_like", "rrelu")


@rule(*_ELEMENTWISE, *(f"{name}_" for name in _ELEMENTWISE))
def elementwise(function: Any, *args: Any, **options: Any) -> Any:
    strip = first_strip((*args, *options.values()))
    given = [local(value, strip) for value in args]
    found = function(*given, **{name: local(value, strip) for name, value in options.items()})
    return strip.like(found, axis=found.dim() - strip.dim() + strip.axis)


@rule(*_RANDOM, *(f"{name}_" for name in _RANDOM))
def random(function: Any, *args: Any, **options: Any) -> Any:
    strip = first_strip((*args, *options.values()))
    if not options.get("training", True):
        return elementwise(function, *args, **options)
    # Ranks draw different numbers, as many as they have, and the generators of all ranks stay alike.
    seed = int(torch.randint(2**62, ())) + strip.comm.rank
    rows = strip.to_local()
    with torch.random.fork_rng(devices=[rows.device] if rows.is_cuda else []):
        torch.default_generator.manual_seed(seed)
        if rows.is_cuda:
            torch.cuda.manual_seed(seed)
        return elementwise(function, *args, **options)


@rule("prelu")
def prelu(function: Any, strip: Strip, weight: torch.Tensor) -> Strip:
    return strip.like(function(strip.to_local(), weight))


def _axis(strip: Strip, dim: Any) -> int:
    """Return the number of an axis, which is not that of the rows."""
    if not isinstance(dim, int):
        raise CannotSplitError(f"dim={dim!r} is not one axis", "Pass dim as an integer")
    axis = dim % strip.dim()
    if axis == strip.axis:
        raise CannotSplitError(f"the function works along axis {dim}, which is divided among the ranks")
    return axis


@rule("softmax", "log_softmax", "softmin", "glu", "normalize", "cumsum")
def along_one_axis(function: Any, strip: Strip, *args: Any, **options: Any) -> Any:
    default = {"glu": -1, "normalize": 1}.get(function.__name__)
    position = 1 if function.__name__ == "normalize" else 0
    _axis(strip, options["dim"] if "dim" in options else args[position] if len(args) > position else default)
    return strip.like(function(strip.to_local(), *args, **options))


@rule("cat", "concat", "concatenate")
def cat(function: Any, tensors: Any, dim: int = 0) -> Strip:
    strip = first_strip(tensors)
    _axis(strip, dim)
    return strip.like(function([local(each, strip) for each in tensors], dim))


@rule("chunk", "split")
def split(function: Any, strip: Strip, *args: Any, **options: Any) -> tuple[Strip, ...]:
    # The size of the parts, or their number, has another name in each function.
    _axis(strip, options["dim"] if "dim" in options else args[1] if len(args) > 1 else 0)
    return tuple(strip.like(part) for part in function(strip.to_local(), *args, **options))


@rule("squeeze")
def squeeze(function: Any, strip: Strip, dim: int | None = None) -> Strip:
    axis = _axis(strip, dim)
    found = function(strip.to_local(), axis)
    return strip.like(found, axis=strip.axis - (axis < strip.axis and found.dim() < strip.dim()))


@rule("unsqueeze")
def unsqueeze(function: Any, strip: Strip, dim: int) -> Strip:
    axis = dim % (strip.dim() + 1)
    return strip.like(function(strip.to_local(), axis), axis=strip.axis + (axis <= strip.axis))


@rule("__getitem__")
def getitem(function: Any, strip: Strip, index: Any) -> Strip:
    index = index if isinstance(index, tuple) else (index,)
    before, rest = index[: strip.axis], index[strip.axis :]
    simple = all(isinstance(each, int | slice) for each in index)
    if not simple or any(each != slice(None) for each in rest[:1]):
        raise CannotSplitError("an index of a strip consists of numbers and slices, with ':' for the rows")
    return strip.like(
        function(strip.to_local(), index), axis=strip.axis - sum(isinstance(each, int) for each in before)
    )


@rule("argmax", "argmin", "amax", "amin", "all", "any")
def reduced(function: Any, strip: Strip, dim: int | None = None, *, keepdim: bool = False) -> Strip:
    axis = _axis(strip, dim)
    found = function(strip.to_local(), dim, keepdim=keepdim)
    return strip.like(found, axis=strip.axis - (axis < strip.axis and not keepdim))


@rule("sum", "mean")
def sums(function: Any, strip: Strip, dim: Any = None, keepdim: bool = False, **options: Any) -> Any:
    dims = (dim,) if isinstance(dim, int) else dim or range(strip.dim())
    axes = {axis % strip.dim() for axis in dims}
    if strip.axis not in axes:
        found = function(strip.to_local(), dim, keepdim=keepdim, **options)
        return strip.like(found, axis=strip.axis - (0 if keepdim else sum(axis < strip.axis for axis in axes)))
    if function.__name__ == "sum":
        return total(strip.comm, torch.sum(strip.to_local(), tuple(axes), keepdim=keepdim, **options))
    dtype = options.pop("dtype", None) or strip.dtype
    if not dtype.is_floating_point and not dtype.is_complex:
        raise CannotSplitError(f"{dtype} has no means", "Convert the tensor by float() before")
    # The sum may exceed float16 where the mean does not.
    precise = torch.promote_types(dtype, torch.float32)
    summed = total(strip.comm, torch.sum(strip.to_local(), tuple(axes), keepdim=keepdim, dtype=precise, **options))
    return (summed / (strip.numel() // (summed.numel() if summed.dim() else 1))).to(dtype)


@rule("dropout1d", "dropout2d", "dropout3d", "feature_dropout", "feature_alpha_dropout")
def channel_dropout(function: Any, strip: Strip, p: float = 0.5, training: bool = True, inplace: bool = False) -> Strip:
    if not training or function.__name__ == "feature_alpha_dropout":
        if training:
            raise CannotSplitError("the channels that are left out differ between ranks", "Use Dropout2d")
        return strip
    kept = torch.nn.functional.dropout(strip.to_local().new_ones(strip.shape[:2]), p)
    # A channel is left out on all ranks, or on none.
    kept = total(strip.comm, kept if strip.comm.rank == 0 else torch.zeros_like(kept))
    factor = kept.view(*kept.shape, *[1] * (strip.dim() - 2))
    return strip.like(strip.to_local().mul_(factor) if inplace else strip.to_local() * factor)
