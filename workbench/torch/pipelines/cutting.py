"""Cut a module into the stages of a pipeline, at the layers where measured time and memory are balanced."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from workbench.errors import InvalidRequest
from workbench.gpu.tensors import on_device
from workbench.torch.pipelines.costs import measured
from workbench.torch.pipelines.layers import Layers
from workbench.torch.pipelines.plan import Layout, Plan
from workbench.torch.pipelines.running import Pipeline
from workbench.torch.pipelines.way import Loss
from workbench.torch.tensors import tensor


def pipeline(
    module: nn.Module,
    sample: Any,
    loss: Loss,
    *,
    size: int,
    stages: int = 2,
    replicas: int | None = None,
    microbatches: int = 8,
    schedule: str = "1f1b",
    seed: int = 0,
    device: str = "cpu",
) -> Pipeline:
    """Cut a module into stages that train on different ranks; collective, in a `distributed` block.

    Parameters
    ----------
    module : torch.nn.Module
        Module that takes one tensor of shape (rows, ...) and returns one: a ``torch.nn.Sequential``, or a module whose
        ``forward`` torch.fx can trace. The same on all ranks, on the CPU or on the meta device. The weights of the
        other ranks' stages move to the meta device, so this rank no longer holds them.
    sample : block or tensor of shape (rows, ...)
        Rows as the module takes them, of which the first ones are measured on rank 0.
    loss : callable
        Function of outputs and labels that returns the mean over the rows, as ``torch.nn.functional.cross_entropy``.
    size : int
        Rows of a batch on all ranks together, as in `batches`.
    stages : int, default=2
        Number of parts of the module.
    replicas : int, default=None
        Number of pipelines that share each batch. None: the number of ranks over `stages`.
    microbatches : int, default=8
        Parts of a batch that pass the stages one after the other, in all replicas together.
    schedule : {"1f1b", "gpipe", "bidirectional"}, default="1f1b"
        ``"gpipe"``: all forward passes, then all backward passes (Huang et al., 2019). ``"1f1b"``: a stage alternates
        between both, and holds the activations of fewer microbatches (Narayanan et al., 2019). ``"bidirectional"``:
        half of the microbatches pass a second copy of the module whose stages are on the ranks in opposite order, each
        half by 1F1B. Each rank holds two stages, and the second half begins on the ranks where the first one has ended
        (GEMS-MAST: Jain et al., 2020).
    seed : int, default=0
        Seed of weights on the meta device, which ``reset_parameters`` of their modules initializes.
    device : str, default="cpu"
        Device of PyTorch of each rank, for example ``"cuda"``, to which its stages and its rows are copied. The layers
        are measured on that of rank 0, one after the other.

    Returns
    -------
    Pipeline
        The part of this rank. Its text is the plan: where the module is cut, and what each rank holds.

    Raises
    ------
    InvalidRequest
        On all ranks, if torch.distributed is not initialized, the ranks, rows or microbatches cannot be shared evenly,
        or the module cannot be cut into so many stages. On a rank that cannot use the device.

    Notes
    -----
    ``torch.distributed.pipelining`` runs the stages. The first `stages` ranks are the first replica, and so on. Layers
    see the same microbatches in each layout, so the losses are the same except for rounding, also with ``BatchNorm``.
    Gradients of replicas are added after the last backward pass and not by DDP: collectives of a rank do not overlap
    with its computation, and the reductions of DDP would make the two directions wait for each other.

    Examples
    --------
    >>> import torch
    >>> from workbench.torch import batches, distributed
    >>> @workbench.spmd(result="root")
    ... def train(comm, module, X, y):
    ...     with distributed(comm):
    ...         net = pipeline(module, X, torch.nn.functional.cross_entropy, size=64, stages=2)
    ...         optimizer = torch.optim.SGD(net.parameters(), 0.1)
    ...         for rows, labels in batches(comm, X, y, size=64):
    ...             loss = net.step(rows, labels)
    ...             optimizer.step()
    ...         return str(net)
    >>> layers = [torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)]
    >>> X, y = workbench.place(np.ones((128, 2), "float32"), np.zeros(128, int))
    >>> print(train(torch.nn.Sequential(*layers), X, y))  # doctest: +ELLIPSIS
    pipeline: 2 stages x 2 replicas, 1f1b, batches of 64 rows in microbatches of 8 rows
    rank  stage  layers  weights  ...
    0, 2      0  ...
    1, 3      1  ...
    """
    if not dist.is_initialized():
        raise InvalidRequest("torch.distributed is not initialized. Call pipeline() in a distributed(comm) block.")
    layout = Layout.of(
        dist.get_world_size(),
        size=size,
        stages=stages,
        replicas=replicas,
        microbatches=microbatches,
        schedule=schedule,
    )
    on_device(torch.empty(0), device)  # raises the error of a device that cannot be used
    layers = Layers(module, 1 / stages)
    found: list[Any] = [_plan(layout, layers, module, sample, device) if dist.get_rank() == 0 else None]
    # The times are those of one rank, so that all ranks cut at the same layers.
    dist.broadcast_object_list(found)
    if isinstance(found[0], InvalidRequest):
        raise found[0]
    if dist.get_rank() == 0 and (uneven := found[0].uneven()):
        warnings.warn(uneven, stacklevel=2)
    return Pipeline(module, layers, found[0], loss, seed=seed, device=device)


def _plan(layout: Layout, layers: Layers, module: nn.Module, sample: Any, device: str) -> Plan | InvalidRequest:
    """Return the plan, or the error that all ranks raise."""
    try:
        rows = _microbatch(tensor(sample), layout.rows, module)
        return Plan.of(layout, rows.to("meta"), measured(layers, rows.to(device)), [*layers.shared()])
    except InvalidRequest as error:
        return error


def _microbatch(rows: torch.Tensor, count: int, module: nn.Module) -> torch.Tensor:
    """Return as many rows as a microbatch has, repeated if there are fewer, in the precision of the module."""
    if not len(rows):
        raise InvalidRequest("sample has no rows on rank 0. Pass at least one row of the input of the module.")
    rows = rows[torch.arange(count) % len(rows)]
    first = next((each for each in module.parameters() if each.is_floating_point()), None)
    return rows if first is None or not rows.is_floating_point() else rows.to(first.dtype)
