"""The tensor that a net gets in the place of an image of which each rank has a strip."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from workbench.errors import InvalidRequest
from workbench.torch.spatial.exchange import AXIS
from workbench.torch.spatial.layout import bounds
from workbench.torch.spatial.windowed import whole

if TYPE_CHECKING:
    from mpi4py import MPI

_RULES: dict[str, Callable[..., Any]] = {}
_REMEDY = (
    "Replace the layer by one that can be split (docs/large-models.md lists these), or put an adaptive pooling, whose "
    "whole result every rank has, before the layer"
)
_OPERATORS = {
    "add": "add", "radd": "add", "iadd": "add_", "sub": "sub", "rsub": "__rsub__", "isub": "sub_", "mul": "mul",
    "rmul": "mul", "imul": "mul_", "truediv": "div", "rtruediv": "__rdiv__", "itruediv": "div_", "pow": "pow",
    "rpow": "__rpow__", "mod": "remainder", "floordiv": "floor_divide",
    "neg": "neg", "abs": "abs", "gt": "gt", "ge": "ge", "lt": "lt", "le": "le", "eq": "eq", "ne": "ne",
    "invert": "bitwise_not", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "getitem": "__getitem__",
}  # fmt: skip
# Functions of PyTorch accept these names of NumPy.
_OF_NUMPY = {"axis": "dim", "keepdims": "keepdim"}


class CannotSplitError(Exception):
    """A function of PyTorch cannot be computed on strips; becomes `InvalidRequest` with the name of the layer."""

    def __init__(self, why: str, remedy: str = _REMEDY) -> None:
        super().__init__(why)
        self.why, self.remedy = why, remedy


def rule(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a function the rule of functions of PyTorch: it is called with the function and its arguments."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        _RULES.update(dict.fromkeys(names, function))
        return function

    return register


class Strip:
    """A tensor of which each rank has some of the rows.

    Its `shape` is that of the whole tensor, and functions of PyTorch have the result that they have for the whole
    tensor: another `Strip`, or, for a reduction over the rows, a tensor that every rank has whole.

    Parameters
    ----------
    local : torch.Tensor
        Rows of this rank.
    height : int
        Rows of all ranks; rank *r* of *n* has the rows from ``r * height // n`` to before ``(r + 1) * height // n``.
    comm : mpi4py.MPI.Intracomm
        Communicator of the ranks.
    axis : int, default=2
        Axis of the rows.

    Notes
    -----
    PyTorch passes functions with a `Strip` as argument to ``__torch_function__``. A function without a rule raises
    `InvalidRequest`, so that no result is that of a strip where the one of the image is meant.
    """

    def __init__(self, local: torch.Tensor, height: int, comm: MPI.Intracomm, axis: int = AXIS) -> None:
        self._local, self.height, self.comm, self.axis = local, height, comm, axis

    def to_local(self) -> torch.Tensor:
        """Return the rows of this rank."""
        return self._local

    def full_tensor(self) -> torch.Tensor:
        """Return the rows of all ranks, on every rank; collective."""
        return whole(self.comm, self._local, self.have, self.axis)

    def like(self, local: torch.Tensor, *, height: int | None = None, axis: int | None = None) -> Strip:
        """Return a strip of other rows, on the same ranks."""
        return Strip(local, self.height if height is None else height, self.comm, self.axis if axis is None else axis)

    @property
    def have(self) -> list[int]:
        """First row of each rank, and the height."""
        return bounds(self.height, self.comm.size)

    @property
    def rows(self) -> slice:
        """Rows of this rank."""
        return slice(*self.have[self.comm.rank :][:2])

    @property
    def shape(self) -> torch.Size:
        """Shape of the whole tensor."""
        shape = list(self._local.shape)
        shape[self.axis] = self.height
        return torch.Size(shape)

    def size(self, dim: int | None = None) -> Any:
        """Return the shape of the whole tensor, or its length along an axis."""
        return self.shape if dim is None else self.shape[dim]

    def numel(self) -> int:
        """Return the number of elements of the whole tensor."""
        return int(self.shape.numel())

    def dim(self) -> int:
        """Return the number of axes."""
        return int(self._local.dim())

    ndim = property(dim)
    dtype = property(lambda self: self._local.dtype)
    device = property(lambda self: self._local.device)
    requires_grad = property(lambda self: self._local.requires_grad)

    def is_floating_point(self) -> bool:
        """Return whether the elements are real numbers."""
        return bool(self._local.is_floating_point())

    def __len__(self) -> int:
        return int(self.shape[0])

    def __repr__(self) -> str:
        rows = self.rows
        return f"Strip(rows {rows.start}:{rows.stop} of axis {self.axis} of {tuple(self.shape)}, {self.dtype})"

    def __getattr__(self, name: str) -> Any:
        method = getattr(torch.Tensor, name, None)
        if name.startswith("__") or not callable(method):
            raise AttributeError(f"a strip has no attribute {name!r}")
        return lambda *args, **options: self.__torch_function__(method, (), (self, *args), options)

    @classmethod
    def __torch_function__(
        cls, function: Any, _types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = function.__name__
        try:
            if name not in _RULES:
                raise CannotSplitError("the function has no rule for strips")  # noqa: TRY301  (one place adds the layer)
            options = {_OF_NUMPY.get(option, option): value for option, value in (kwargs or {}).items()}
            return _RULES[name](function, *args, **options)
        except CannotSplitError as error:
            message = f"{name}{_layer()} cannot be computed on strips of an image: {error.why}. {error.remedy}"
        raise InvalidRequest(message)


def _operator(name: str) -> Callable[..., Any]:
    def apply(self: Strip, *args: Any) -> Any:
        return Strip.__torch_function__(getattr(torch.Tensor, name), (), (self, *args))

    return apply


for _name, _method in _OPERATORS.items():
    setattr(Strip, f"__{_name}__", _operator(_method))
Strip.__hash__ = object.__hash__  # type: ignore[method-assign]


class Net(torch.nn.Module):
    """A module that passes strips to another one; its layers have names in errors."""

    module: torch.nn.Module


def _layer() -> str:
    """Return the name of the layer whose `forward` is running, for an error."""
    inner: torch.nn.Module | None = None
    for owner in _owners():
        if isinstance(owner, Net):
            names = {layer: name for name, layer in owner.module.named_modules()}
            if inner is None or inner not in names:
                return ""
            return f" in layer {names[inner]!r} ({type(inner).__name__})" if names[inner] else ""
        inner = inner or owner
    return ""


def _owners() -> Iterator[torch.nn.Module]:
    """Yield the modules whose methods are running, the innermost first."""
    frame = inspect.currentframe()
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, torch.nn.Module):
            yield owner
        frame = frame.f_back


def first_strip(values: Any) -> Strip:
    """Return the first strip among arguments."""
    found = next(strips_in(values), None)
    if found is None:
        raise CannotSplitError("the function got the strip in an argument that takes no tensor")
    return found


def strips_in(values: Any) -> Iterator[Strip]:
    """Yield the strips among arguments, also those in lists."""
    for value in values:
        if isinstance(value, Strip):
            yield value
        elif isinstance(value, list | tuple):
            yield from strips_in(value)


def local(value: Any, strip: Strip) -> Any:
    """Return what a rank computes with beside a strip: its rows of a tensor, and other values unchanged.

    Tensors broadcast as in PyTorch. A tensor that has the rows of the rank is taken as these rows, and one that has all
    rows is cut.
    """
    if isinstance(value, list | tuple):
        return type(value)(local(each, strip) for each in value)
    from_end = strip.dim() - strip.axis
    if isinstance(value, Strip):
        if value.height != strip.height or value.dim() - value.axis != from_end:
            raise CannotSplitError(
                f"strips of the shapes {tuple(strip.shape)} and {tuple(value.shape)} do not have the same rows",
                "Resize the images to the same height first",
            )
        return value.to_local()
    if not isinstance(value, torch.Tensor) or value.dim() < from_end:
        return value
    rows, own = value.shape[-from_end], strip.rows
    if rows in {1, own.stop - own.start}:
        return value
    if rows == strip.height:
        return value.narrow(-from_end, own.start, own.stop - own.start)
    raise CannotSplitError(
        f"a tensor of shape {tuple(value.shape)} has neither the {strip.height} rows of the image nor the "
        f"{own.stop - own.start} of this rank",
        "Pass the rows of the rank, image[..., model.rows(height), :]",
    )
