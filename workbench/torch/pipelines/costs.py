"""What each layer costs: the time and the memory of one microbatch, measured."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as tree

from workbench.errors import InvalidRequest
from workbench.torch.pipelines.layers import Layers, initialize

# Measurements of each layer, of which the shortest one counts. The first one also allocates. There are more, up to a
# number, until the two shortest ones differ by less than a share, because other programs may use the core meanwhile.
_FEWEST, _MOST, _AGREE = 3, 12, 0.1


@dataclass(frozen=True)
class Cost:
    """Costs of one layer, and its output."""

    name: str
    """Names of its submodules."""
    seconds: float
    """Time of the forward and the backward pass of a microbatch."""
    saved: int
    """Bytes that the forward pass of a microbatch keeps for the backward pass."""
    weights: int
    """Number of weights."""
    held: int
    """Bytes of weights, gradients and buffers."""
    trained: bool
    """Whether a weight needs a gradient."""
    shape: tuple[int, ...]
    """Shape of the output for a microbatch."""
    dtype: torch.dtype | None
    """Type of the output; None if the output is not one tensor."""
    in_place: bool = False
    """Whether the layer changes its input."""

    @property
    def passes_gradients(self) -> bool:
        """Whether the next layer can run on another rank."""
        return self.dtype is not None and self.dtype.is_floating_point


def measured(layers: Layers, rows: torch.Tensor) -> list[Cost]:
    """Run each layer on a microbatch, one after the other, and return the costs.

    Parameters
    ----------
    layers
        The layers; copies of them run, so that running means of batches do not change.
    rows
        A microbatch, on the device that runs the layers.

    Raises
    ------
    InvalidRequest
        If a layer fails, or the output of the module is not a tensor with as many rows as the microbatch.
    """
    costs, count = [], len(rows)
    passed: Any = rows
    with torch.random.fork_rng(devices=[]):
        for number in range(len(layers)):
            name = layers[number].name
            part = initialize(copy.deepcopy(layers.part(number, number + 1)), 0).to(rows.device)
            try:
                cost, passed = _measured(name, part, passed, on_gpu=rows.is_cuda)
            except Exception as error:
                raise InvalidRequest(
                    f"the layer {name} fails on a microbatch of {count} rows: {error}. The module must accept any "
                    "number of rows; `sample` must have the shape and the type of its input"
                ) from error
            costs.append(cost)
    if costs[-1].dtype is None or costs[-1].shape[:1] != (count,):
        raise InvalidRequest(
            f"the output of the module has the shape {costs[-1].shape} for {count} rows. Return one tensor with one "
            "row for each row of the input."
        )
    return costs


def _measured(name: str, part: nn.Module, given: Any, *, on_gpu: bool) -> tuple[Cost, Any]:
    times: list[float] = []
    # The time of a thread excludes that of other programs on its core. A GPU computes beside the thread.
    clock = time.perf_counter if on_gpu else time.thread_time
    while not _is_sure(times):
        inputs = tree.tree_map(_input, given)
        kept: list[torch.Tensor] = []
        begin = clock()
        # The list keeps what autograd keeps, so that no memory is counted two times.
        with torch.autograd.graph.saved_tensors_hooks(lambda saved, kept=kept: kept.append(saved) or saved, _same):
            output = part(inputs)
        ends = [each for each in tree.tree_leaves(output) if isinstance(each, torch.Tensor) and each.requires_grad]
        if ends:
            torch.autograd.backward(ends, [torch.ones_like(each) for each in ends])
        for each in ends:
            if each.is_cuda:
                torch.cuda.synchronize(each.device)
        times.append(clock() - begin)
        part.zero_grad(set_to_none=True)
    own = [*part.parameters(), *part.buffers()]
    addresses = {each.untyped_storage().data_ptr() for each in own}
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in kept}
    weights = [*part.parameters()]
    one = isinstance(output, torch.Tensor)
    cost = Cost(
        name,
        min(times),
        sum(size for address, size in storages.items() if address not in addresses),
        sum(each.numel() for each in weights),
        sum(each.nbytes * (2 if each.requires_grad else 1) for each in own),
        any(each.requires_grad for each in weights),
        tuple(output.shape) if one else (),
        output.dtype if one else None,
        any(each._version for each in tree.tree_leaves(inputs) if isinstance(each, torch.Tensor)),  # noqa: SLF001  (no public name exists)
    )
    return cost, tree.tree_map(lambda each: each.detach() if isinstance(each, torch.Tensor) else each, output)


def _is_sure(times: list[float]) -> bool:
    """Return whether the shortest time is no accident, or there is no further measurement."""
    if len(times) < _FEWEST:
        return False
    shortest, second = sorted(times)[:2]
    return second <= (1 + _AGREE) * shortest or len(times) == _MOST


def _input(value: Any) -> Any:
    """Return an input of a layer that gets a gradient, as the input of a stage does."""
    if not isinstance(value, torch.Tensor):
        return value
    # No operation in place can change a leaf that gets a gradient, so the layer gets a copy.
    return value.detach().requires_grad_(value.is_floating_point()).clone()


def _same(saved: Any) -> Any:
    return saved
