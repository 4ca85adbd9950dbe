"""Functions of a window of rows, fused with the exchange of the rows.

`torch.autograd` would keep the window for backward, a second copy of the strip. Here the strip and the halos, a few
rows of each side, are kept, and backward makes the window again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable

from workbench.torch.spatial.exchange import Exchange
from workbench.torch.spatial.layout import Part, Plan, Window, bounds

if TYPE_CHECKING:
    from mpi4py import MPI


@dataclass(frozen=True)
class Rows:
    """The rows of the window themselves."""

    keeps = False
    """Whether backward needs the input."""

    def forward(self, window: torch.Tensor) -> torch.Tensor:
        """Return the result for a window."""
        return window

    def backward(self, gradient: torch.Tensor, _window: Any, _needs: Sequence[bool]) -> tuple[Any, ...]:
        """Return the gradients of the window and of the weights, in memory that is not shared."""
        return (gradient.clone(),)


@dataclass(frozen=True)
class Recomputed:
    """A function without weights, which is called again in backward: poolings take less time than memory."""

    function: Callable[[torch.Tensor], torch.Tensor]
    keeps = True

    def forward(self, window: torch.Tensor) -> torch.Tensor:
        """Return the result for a window."""
        return self.function(window)

    def backward(self, gradient: torch.Tensor, window: torch.Tensor, _needs: Sequence[bool]) -> tuple[Any, ...]:
        """Return the gradient of the window."""
        with torch.enable_grad():
            leaf = window.detach().requires_grad_()
            return torch.autograd.grad(self.function(leaf), leaf, gradient)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Convolution:
    """A convolution whose padding along the rows is a part of the window."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    transposed: bool
    output_padding: list[int]
    groups: int
    keeps = True

    def forward(self, window: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Return the result for a window."""
        return torch.convolution(window, weight, bias, *self._options)

    def backward(
        self,
        gradient: torch.Tensor,
        window: torch.Tensor,
        needs: Sequence[bool],
        weight: torch.Tensor,
        bias: torch.Tensor | None,
    ) -> tuple[Any, ...]:
        """Return the gradients of the window, the weights and the bias."""
        sizes = None if bias is None else list(bias.shape)
        found: tuple[Any, ...] = torch.ops.aten.convolution_backward(
            gradient, window, weight, sizes, *self._options, list(needs)
        )
        return found

    @property
    def _options(self) -> tuple[Any, ...]:
        return self.stride, self.padding, self.dilation, self.transposed, self.output_padding, self.groups


class _Windowed(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917  (`apply` passes nothing by name)
        ctx: Any, operation: Any, exchange: Exchange, fill: float, taken: tuple[int, int], strip: Any, *weights: Any
    ) -> Any:
        halos = exchange.pull(strip)
        result = operation.forward(exchange.window(strip, *halos, fill), *weights)
        ctx.operation, ctx.exchange, ctx.fill = operation, exchange, fill
        ctx.taken, ctx.rows = taken, result.shape[exchange.axis]
        kind = strip.device.type
        ctx.precision = kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
        ctx.save_for_backward(*((strip, *halos) if operation.keeps else (None,) * 3), *weights)
        # A copy of a part is smaller than the whole that a view would keep. A result is no view, because later layers
        # may change it in place.
        shared = result.untyped_storage().data_ptr() == strip.untyped_storage().data_ptr()
        if taken == (0, ctx.rows) and not shared and not result._is_view():  # noqa: SLF001  (PyTorch has no public name for it)
            return result
        return result.narrow(exchange.axis, *taken).clone(memory_format=torch.contiguous_format)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Any) -> Any:
        exchange = ctx.exchange
        # Once: checkpointing computes them again.
        strip, above, below, *weights = ctx.saved_tensors
        if ctx.taken != (0, ctx.rows):
            shape = list(gradient.shape)
            shape[exchange.axis] = ctx.rows
            every = gradient.new_zeros(shape)
            every.narrow(exchange.axis, *ctx.taken).copy_(gradient)
            gradient = every
        window = exchange.window(strip, above, below, ctx.fill) if ctx.operation.keeps else None
        # What is computed again must have the types of before.
        with torch.autocast(*ctx.precision):
            of_window, *of_weights = ctx.operation.backward(gradient, window, ctx.needs_input_grad[4:], *weights)
        of_strip = exchange.push(of_window) if ctx.needs_input_grad[4] else None
        return None, None, None, None, of_strip, *of_weights


def windowed(
    comm: MPI.Intracomm,
    operation: Any,
    plan: Plan,
    strip: torch.Tensor,
    *weights: Any,
    have: Sequence[int],
    fill: float = 0.0,
) -> torch.Tensor:
    """Return the rows of this rank of a result; collective, and so is its gradient.

    Parameters
    ----------
    comm
        Communicator of the ranks.
    operation
        `Rows`, `Recomputed` or `Convolution`.
    plan
        What each rank computes.
    strip
        Rows of this rank.
    *weights
        Further arguments of the operation.
    have
        First row of each rank, and the height.
    fill
        Value of the rows outside of the image.
    """
    part: Part = plan.parts[comm.rank]
    first, end = bounds(plan.height, comm.size)[comm.rank :][:2]
    exchange = Exchange(comm, have, [each.window for each in plan.parts])
    found: torch.Tensor = _Windowed.apply(operation, exchange, fill, (part.skip, end - first), strip, *weights)
    return found


def redivided(comm: MPI.Intracomm, strip: torch.Tensor, have: Sequence[int]) -> torch.Tensor:
    """Return the rows of this rank by `bounds`, of a tensor that is divided in another way; collective."""
    height = have[-1]
    if list(have) == bounds(height, comm.size):
        return strip
    plan = Plan.of(height, comm.size, lambda first, end: Part(Window(first, end)))
    return windowed(comm, Rows(), plan, strip, have=have)


def whole(comm: MPI.Intracomm, strip: torch.Tensor, have: Sequence[int], axis: int) -> torch.Tensor:
    """Return all rows, on every rank; collective, and so is its gradient."""
    exchange = Exchange(comm, have, [Window(0, have[-1])] * comm.size, axis)
    found: torch.Tensor = _Windowed.apply(Rows(), exchange, 0.0, (0, have[-1]), strip)
    return found
