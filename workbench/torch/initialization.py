"""Memory and first values for a model without memory, one module at a time."""

from __future__ import annotations

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
        `parallelize_module`, which divide its parameters.
    seed : int, default=0
        Seed of the values, the same on all ranks.

    Raises
    ------
    InvalidRequest
        If a module has parameters or buffers of its own, and no method `reset_parameters`, which sets their values.

    Notes
    -----
    Each rank draws the values of one module in full, and keeps its part, so a rank needs the memory of its part of the
    model and of the largest module. No rank communicates. The values do not depend on the number of ranks. They are
    those of ``torch.manual_seed(seed); Net()`` if modules are registered in the order in which they are made.

    On CPUs torch warns of random operations on divided parameters: each rank draws its own part, so with one seed for
    all ranks the parts have equal values.

    Examples
    --------
    >>> with torch.device("meta"):  # doctest: +SKIP
    ...     model = Net()
    >>> fully_shard(model, mesh=mesh)  # doctest: +SKIP
    >>> materialize(model)  # doctest: +SKIP
    """
    modules = [(module, reset) for name, module in children_first(model) if (reset := initializer(name, module))]
    model.to_empty(device="cpu")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for module, reset in modules:
            _reset(module, reset)


def children_first(model: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each module with its name after its children, in the order in which constructors initialize modules."""
    seen = set()
    for child, module in model.named_children():
        for each in children_first(module, f"{name}.{child}" if name else child):
            if each[1] not in seen:
                seen.add(each[1])
                yield each
    yield name, model


def initializer(name: str, module: Any) -> Callable[[], None] | None:
    """Return the method that sets the values of a module's own weights; None if it has no weights and no method.

    Raises
    ------
    InvalidRequest
        If the module has weights and no method.
    """
    reset: Callable[[], None] | None
    # nn.MultiheadAttention has the second one, which also initializes a weight of its child.
    reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
    own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
    if own and reset is None:
        raise InvalidRequest(
            f"the module {name or 'itself'} ({type(module).__name__}) is on the meta device and has {own[0][0]!r}, and "
            "no method reset_parameters() that sets its values: add the method, or make the module on the CPU"
        )
    return reset


def _reset(module: Any, reset: Callable[[], None]) -> None:
    """Draw the values of the parameters of one module in full, and copy the parts of this rank."""
    divided = {name: its for name, its in module.named_parameters(recurse=False) if isinstance(its, DTensor)}
    for name, parameter in divided.items():
        module._parameters[name] = torch.nn.Parameter(torch.empty(parameter.shape, dtype=parameter.dtype))  # noqa: SLF001  (assignment calls hooks of FSDP)
    try:
        reset()
        with torch.no_grad():
            for name, parameter in divided.items():
                whole = module._parameters[name].data  # noqa: SLF001
                # Without a source, each rank divides its own values, which are equal.
                parts = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
                parameter.to_local().copy_(parts.to_local())
    finally:
        module._parameters.update(divided)  # noqa: SLF001
