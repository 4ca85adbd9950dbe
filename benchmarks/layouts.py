"""What the ranks of the hybrid bench do: train a residual net in one process, or in a layout of stages and replicas.

All begin with the same weights and train on the same rows, so the losses of two layouts can be compared.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.deep_nets import CLASSES, resnet
from workbench.bench import measuring
from workbench.torch import distributed, pipeline, tensor
from workbench.torch.context import rank_threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpi4py.MPI import Intracomm

# Of stochastic gradient descent; steps before the time is taken: the first ones allocate.
_RATE, _WARM = 0.001, 1
# Factor of the last weights of a residual block. Blocks near the identity (De and Smith, 2020) do not amplify rounding
# errors: with a factor of 1 the losses in single precision differ by 1e-5 after two steps, whatever adds the gradients.
_BRANCH = 0.1


@dataclass(frozen=True)
class Arm:
    """A way to train."""

    stages: int
    """Parts of the net; 0: one process trains, and the other ranks wait."""
    schedule: str = "1f1b"
    """Of `workbench.torch.pipeline`."""

    def name(self, ranks: int) -> str:
        """Return the name of the arm on a number of ranks: stages x replicas, and the schedule unless it is 1F1B."""
        if not self.stages:
            return "one"
        layout = f"{self.stages}x{ranks // self.stages}"
        return layout if self.schedule == "1f1b" else f"{layout}_{self.schedule}"


@dataclass(frozen=True)
class Net:
    """The net and its batches."""

    depth: int
    """Number of layers."""
    width: int
    """Channels of the first layer."""
    image: int
    """Height and width of an image."""
    size: int
    """Rows of a batch."""
    microbatches: int
    """Parts of a batch."""
    dtype: str = "float32"
    """Type of weights and images."""

    def make(self) -> tuple[Any, Any, Any]:
        """Return the net, and the rows and the labels of the batch."""
        import torch

        torch.manual_seed(0)
        random, kind = np.random.default_rng(0), getattr(torch, self.dtype)
        rows = torch.from_numpy(random.standard_normal((self.size, 3, self.image, self.image)))
        labels = torch.from_numpy(random.integers(0, CLASSES, self.size))
        net = resnet(self.depth, self.width).to(kind)
        with torch.no_grad():
            for block in net:
                if hasattr(block, "straight"):
                    block.straight[-1].weight.mul_(_BRANCH)
        return net, rows.to(kind), labels


@dataclass(frozen=True)
class Turn:
    """The result of a training on one rank."""

    seconds: float
    """Time of the steps that count."""
    losses: list[float]
    """Of all steps; none on a rank that waits."""
    plan: str = ""
    """The text of the pipeline."""


def train(comm: Intracomm, arm: Arm, net: Net, steps: int, parts: int = 1) -> Turn:
    """Train a number of steps; one process passes the batch in so many parts. Runs on every rank."""
    import torch

    if arm.stages:
        with distributed(comm):
            module, rows, labels = net.make()
            parallel = pipeline(
                module,
                rows,
                torch.nn.functional.cross_entropy,
                size=net.size,
                stages=arm.stages,
                microbatches=net.microbatches,
                schedule=arm.schedule,
            )
            mine = slice(comm.rank * net.size // comm.size, (comm.rank + 1) * net.size // comm.size)
            part = tensor(rows[mine]), tensor(labels[mine])
            seconds, losses = _steps(parallel.parameters(), lambda: parallel.step(*part), comm.Barrier, steps)
            return Turn(seconds, losses, repr(parallel))
    turn = Turn(0.0, [])
    if comm.rank == 0:
        threads = torch.get_num_threads()
        torch.set_num_threads(rank_threads())
        module, rows, labels = net.make()

        def step() -> float:
            module.zero_grad()
            total = 0.0
            for some, wanted in zip(rows.chunk(parts), labels.chunk(parts), strict=True):
                loss = torch.nn.functional.cross_entropy(module(some), wanted) / parts
                loss.backward()
                total += loss.item()
            return total

        turn = Turn(*_steps(module.parameters(), step, lambda: None, steps))
        torch.set_num_threads(threads)
    comm.Barrier()
    return turn


def _steps(
    weights: Any, step: Callable[[], float], together: Callable[[], object], steps: int
) -> tuple[float, list[float]]:
    import torch

    optimizer = torch.optim.SGD(weights, _RATE)
    losses, begin = [], 0.0
    for number in range(_WARM + steps):
        if number == _WARM:
            together()
            begin = time.perf_counter()
        losses.append(step())
        optimizer.step()
    return time.perf_counter() - begin, losses


def growth(comm: Intracomm, arm: Arm, net: Net) -> measuring.Growth:
    """Return how far the memory of this rank grows in a training from the net on. Runs on every rank."""
    # What is imported, and what MPI allocates for its first messages, is not of the training.
    train(comm, arm, net, 0)
    watch = measuring.Watch()
    train(comm, arm, net, 1)
    return watch.end()
