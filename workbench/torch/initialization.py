"""Memory and first values for a model without memory, one module at a time."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.distributed.tensor import DTensor, distribute_tensor

from workbench.errors import InvalidRequest


def materialize(model: Any, *, seed: int = 0) -> None:
    """Give memory and first values to a model that was made on the device ``meta``.

    Parameters
    ----------
    model : torch.nn.Module
        Module without memory, as ``with torch.device("meta"): Net()`` makes it, after `fully_shard` or
        `parallelize_module`, which divide its parameters. Weights and buffers that have memory keep their values.
    seed : int, default=0
        Seed of the values, the same on all ranks.

    Raises
    ------
    InvalidRequest
        If a module itself has parameters or buffers without memory, and no method `reset_parameters`, which sets
        their values.

    Notes
    -----
    Each rank draws the values of one module in full, and keeps its part, so a rank needs the memory of its part of the
    model and of the largest module. No rank communicates. The values do not depend on the number of ranks. They are
    those of ``torch.manual_seed(seed); Net()`` if modules are registered in the order in which they are made, all are
    without memory, none share a weight, and only `reset_parameters` draws values.

    Only modules that have weights themselves are initialized. What constructors do in addition is not repeated, for
    example ``torch.nn.init`` of the weights of a child, and the Xavier initialization of ``torch.nn.Transformer``: call
    such functions afterwards. A weight that several modules share remains one, with the values that the first module
    draws.

    On CPUs torch warns of random operations on divided parameters: each rank draws its own part, so with one seed for
    all ranks the parts have equal values.

    Examples
    --------
    >>> import torch
    >>> from torch.distributed.fsdp import fully_shard
    >>> from workbench.torch import distributed
    >>> @workbench.spmd
    ... def build(comm):
    ...     with distributed(comm), torch.device("meta"):
    ...         model = torch.nn.Linear(4, 8)
    ...         fully_shard(model, mesh=torch.distributed.init_device_mesh("cpu", (comm.size,)))
    ...         materialize(model)
    ...         return model.weight.to_local().shape
    >>> build()[0]
    torch.Size([2, 4])
    """
    modules = [(module, reset) for _, module, reset in without_memory(model)]
    made: dict[torch.Tensor, torch.Tensor] = {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for module, reset in modules:
            draw(module, reset, made)


def children_first(model: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each module with its name after its children, in the order in which constructors initialize modules."""
    seen = set()
    for child, module in model.named_children():
        for each in children_first(module, f"{name}.{child}" if name else child):
            if each[1] not in seen:
                seen.add(each[1])
                yield each
    yield name, model


def without_memory(model: Any) -> Iterator[tuple[str, Any, Callable[[], None]]]:
    """Yield each module with own weights on the meta device: its name, itself and the method that sets their values.

    Raises
    ------
    InvalidRequest
        If a module has no method.
    """
    for name, module in children_first(model):
        own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        missing = [each for each, weight in own if weight.is_meta]
        # nn.MultiheadAttention has the second one, which also initializes a weight of its child.
        reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
        if not missing:
            continue
        if reset is None:
            raise InvalidRequest(
                f"the module {name or 'itself'} ({type(module).__name__}) is on the meta device and has "
                f"{missing[0]!r}, but no method reset_parameters() that sets its values. Add the method, or "
                "create the module on the CPU."
            )
        yield name, module, reset


def draw(module: Any, reset: Callable[[], None], made: dict[torch.Tensor, torch.Tensor]) -> None:
    """Draw the values of own weights of a module without memory in full, and keep the parts of this rank.

    Parameters
    ----------
    module
        Module; its weights on the meta device are replaced.
    reset
        Method that sets the values of all weights of the module; those of weights with memory are kept.
    made
        Weights with memory by those on the meta device, which other modules may share; extended.
    """
    owners = module._parameters, module._buffers  # noqa: SLF001  (assignment calls hooks of FSDP)
    own = [(each, name, weight) for each in owners for name, weight in each.items() if weight is not None]
    new = {weight: _memory(weight) for *_, weight in own if weight.is_meta and weight not in made}
    made |= new
    try:
        if new:
            for each, name, weight in own:
                each[name] = _whole(made.get(weight, weight), kept=weight not in new)
            reset()
            with torch.no_grad():
                for each, name, weight in own:
                    if weight in new:
                        _copy(each[name], new[weight])
    finally:
        for each, name, weight in own:
            each[name] = made.get(weight, weight)


def _memory(weight: torch.Tensor) -> torch.Tensor:
    device = weight.device_mesh.device_type if isinstance(weight, DTensor) else "cpu"
    return _alike(weight, torch.empty_like(weight, device=device), weight.requires_grad)


def _whole(weight: torch.Tensor, *, kept: bool) -> torch.Tensor:
    """Return a weight whose values may be drawn, or another one with its shape if it is divided or keeps its values."""
    if isinstance(weight, DTensor):
        return _alike(weight, _mapped(weight.shape, weight.dtype))
    return _alike(weight, weight.detach().clone()) if kept else weight


def _mapped(shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    """Return memory that the system gets back, since an allocator keeps holes between the parts that remain."""
    memory = mmap.mmap(-1, max(1, shape.numel() * dtype.itemsize))
    return torch.frombuffer(memory, dtype=torch.uint8)[: shape.numel() * dtype.itemsize].view(dtype).view(shape)


def _alike(weight: torch.Tensor, values: torch.Tensor, requires_grad: bool = False) -> torch.Tensor:
    return torch.nn.Parameter(values, requires_grad) if isinstance(weight, torch.nn.Parameter) else values


def _copy(whole: torch.Tensor, weight: torch.Tensor) -> None:
    """Copy the part of this rank."""
    if isinstance(weight, DTensor):
        # Without a source, each rank divides its own values, which are equal.
        parts = distribute_tensor(whole.data, weight.device_mesh, weight.placements, src_data_rank=None)
        whole, weight = parts.to_local(), weight.to_local()
    weight.copy_(whole)
