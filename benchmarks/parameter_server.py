"""Training by a parameter server of Dask futures: what a Dask program without collectives does.

The server is a task on the first worker, the gradients are tasks on each. All steps are submitted together, so that no
step waits for the client, and weights and gradients go from worker to worker, each in one array.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from benchmarks import nets
from benchmarks.nets import Turn
from workbench.placement.pinning import target_workers
from workbench.torch import tensor

if TYPE_CHECKING:
    import numpy as np
    from distributed import Client
    from numpy.typing import NDArray

    _Vector = NDArray[np.floating[Any]]
    _State = tuple[_Vector, list[float]]

SERVER = "server"
"""Name of the arm."""
# Nets of this process, each with its batch.
_nets: dict[tuple[str, str, int], tuple[Any, Any, Any]] = {}


def train(client: Client, net: str, steps: int, dtype: str) -> Turn:
    """Train a net so many steps; as `benchmarks.nets.train` on every rank."""
    from distributed import wait

    workers = [rank.address for rank in target_workers(client, "rank")]
    state = client.submit(_begin, net, dtype, workers=workers[:1], pure=False)

    def take(steps: int) -> None:
        nonlocal state
        for _ in range(steps):
            gradients = [
                client.submit(_gradient, state, net, dtype, rank, workers=[worker], pure=False)
                for rank, worker in enumerate(workers)
            ]
            state = client.submit(_step, state, *gradients, workers=workers[:1], pure=False)
        wait(state)

    take(nets.WARM)
    begin = time.perf_counter()
    take(steps)
    took = time.perf_counter() - begin
    return Turn(took, client.submit(_losses, state).result())


def _begin(net: str, dtype: str) -> _State:
    import torch

    weights: _Vector = torch.nn.utils.parameters_to_vector(nets.make(net, dtype).parameters()).detach().numpy()
    return weights, []


def _gradient(state: _State, net: str, dtype: str, rank: int) -> tuple[_Vector, float]:
    """Return the gradient of the batch of a rank, and the loss."""
    import torch

    key = net, dtype, rank
    if key not in _nets:
        _nets[key] = nets.make(net, dtype), *nets.batch(net, dtype, rank)
    model, rows, labels = _nets[key]
    parameters = list(model.parameters())
    parts = tensor(state[0]).split([weights.numel() for weights in parameters])
    for weights, part in zip(parameters, parts, strict=True):
        weights.data, weights.grad = part.view_as(weights), None
    loss = torch.nn.functional.cross_entropy(model(rows), labels)
    loss.backward()
    return torch.cat([weights.grad.reshape(-1) for weights in parameters]).numpy(), float(loss)


def _step(state: _State, *gradients: tuple[_Vector, float]) -> _State:
    """Return the next weights, in the memory of these: all who use them have returned their gradients."""
    weights, losses = state
    mean = sum(tensor(gradient) for gradient, _ in gradients) / len(gradients)
    tensor(weights).sub_(mean, alpha=nets.RATE)
    return weights, [*losses, sum(loss for _, loss in gradients) / len(gradients)]


def _losses(state: _State) -> list[float]:
    return state[1]
