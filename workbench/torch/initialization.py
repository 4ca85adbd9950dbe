"""Memory and first values for a model without memory, one module at a time."""

from __future__ import annotations

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
    for name, module in model.named_modules():
        own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        if own and not hasattr(module, "reset_parameters"):
            raise InvalidRequest(
                f"materialize: the module {name or 'itself'} ({type(module).__name__}) has {own[0][0]!r}, and no "
                "method reset_parameters() that sets its values; add the method, as modules of torch have it"
            )
    model.to_empty(device="cpu")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for module in model.modules():
            if hasattr(module, "reset_parameters"):
                _reset(module)


def _reset(module: Any) -> None:
    """Draw the values of the parameters of one module in full, and copy the parts of this rank."""
    divided = {name: its for name, its in module.named_parameters(recurse=False) if isinstance(its, DTensor)}
    for name, parameter in divided.items():
        module._parameters[name] = torch.nn.Parameter(torch.empty(parameter.shape, dtype=parameter.dtype))  # noqa: SLF001  (assignment calls hooks of FSDP)
    try:
        module.reset_parameters()
        with torch.no_grad():
            for name, parameter in divided.items():
                whole = module._parameters[name].data  # noqa: SLF001
                # Without a source, each rank divides its own values, which are equal.
                parts = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
                parameter.to_local().copy_(parts.to_local())
    finally:
        module._parameters.update(divided)  # noqa: SLF001
