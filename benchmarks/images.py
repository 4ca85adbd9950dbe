"""What the ranks do in the strips bench: a U-Net and images for it, by the rows of a rank.

PyTorch is imported where it is used, so that the command that only asks for the figures does without.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workbench.bench import measuring
from workbench.torch.context import rank_threads

if TYPE_CHECKING:
    from mpi4py import MPI

CHANNELS, CLASSES = 3, 2
"""Of the images, and of the result for each pixel."""


@dataclass(frozen=True)
class Step:
    """What one rank measured of one forward and backward pass."""

    nbytes: int
    """Largest additional resident memory."""
    seconds: float
    loss: float
    """Of the whole image."""


def unet(channels: int, width: int, classes: int, *, checkpointed: bool = False) -> Any:
    """Return a U-Net of three levels (Ronneberger et al., 2015) with batch normalization.

    Parameters
    ----------
    channels, classes
        Numbers of channels of the images and of the result.
    width
        Channels of the first level; each further level has twice as many.
    checkpointed
        Whether activations inside of a block are computed again in ``backward``.
    """
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    def block(before: int, after: int) -> Any:
        return nn.Sequential(
            nn.Conv2d(before, after, 3, padding=1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(inplace=True),
            nn.Conv2d(after, after, 3, padding=1),
            nn.ReLU(inplace=True),
        )

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.top, self.middle = block(channels, width), block(width, 2 * width)
            self.bottom, self.left = block(2 * width, 4 * width), block(4 * width, 2 * width)
            self.pool, self.up = nn.MaxPool2d(2), nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
            self.resize = nn.Upsample(scale_factor=2, mode="bilinear")
            self.right, self.last = block(3 * width, width), nn.Conv2d(width, classes, 1)

        def run(self, layer: Any, image: Any) -> Any:
            return checkpoint(layer, image, use_reentrant=False) if checkpointed else layer(image)

        def forward(self, image: Any) -> Any:
            top = self.run(self.top, image)
            middle = self.run(self.middle, self.pool(top))
            up = self.up(self.run(self.bottom, self.pool(middle)))
            left = self.run(self.left, torch.cat([middle, up], 1))
            return self.last(self.run(self.right, torch.cat([top, self.resize(left)], 1)))

    torch.manual_seed(0)
    return UNet()


def image(rows: slice, size: int, dtype: str) -> tuple[Any, Any]:
    """Return some rows of an image of ``size * size`` pixels, and the classes of their pixels."""
    import torch

    places = torch.arange(rows.start * size, rows.stop * size, dtype=torch.float64).view(1, 1, -1, size)
    pixels = torch.cat([torch.sin(places / (3.0 + 17 * channel)) for channel in range(CHANNELS)], 1)
    return pixels.to(getattr(torch, dtype)), (pixels.sum(1) > 0).long()


def step(comm: MPI.Intracomm, width: int, size: int, *, alone: bool) -> Step | None:
    """Compute the gradients of an image: rank 0 of the whole image, or all ranks of strips. Runs on every rank."""
    if alone and comm.rank:
        return None
    watch, begin = measuring.Watch(), time.perf_counter()
    loss = _backward(comm, width, size, alone=alone)
    return Step(watch.end().nbytes, time.perf_counter() - begin, loss)


def gradients(comm: MPI.Intracomm, width: int, size: int) -> float:
    """Return how far the gradients on strips are from those of one process, in double precision. Runs on every rank."""
    import torch

    from workbench.torch import strips

    rows, labels = image(slice(0, size), size, "float64")
    nets = [unet(CHANNELS, width, CLASSES).double() for _ in range(2)]
    torch.nn.functional.cross_entropy(nets[0](rows), labels).backward()
    model = strips(nets[1], comm)
    mine = model.rows(size)
    torch.nn.functional.cross_entropy(model(rows[:, :, mine]), labels[:, mine]).backward()
    pairs = zip(*(net.parameters() for net in nets), strict=True)
    apart: float = max((one.grad - other.grad).abs().max().item() for one, other in pairs)
    return apart


def trains_within(comm: MPI.Intracomm, width: int, size: int, nbytes: int, *, alone: bool) -> bool:
    """Return whether a step succeeds with so much more memory for each process. Runs on every rank."""
    if alone and comm.rank:
        return True
    with limited(nbytes):
        return is_enough(lambda: _backward(comm, width, size, alone=alone))


def is_enough(function: Callable[[], object]) -> bool:
    """Return whether a function has the memory that it needs."""
    try:
        function()
    except (MemoryError, RuntimeError) as error:
        if "memory" not in f"{type(error).__name__} {error}".lower():
            raise
        return False
    return True


@contextmanager
def limited(nbytes: int) -> Iterator[None]:
    """Limit the writable memory of this process to the present size and `nbytes` more."""
    import psutil

    # Not RLIMIT_AS, which counts the address space that the C library has reserved for each thread.
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (psutil.Process().memory_info().data + nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _backward(comm: MPI.Intracomm, width: int, size: int, *, alone: bool) -> float:
    """Compute the gradients of an image, and return its loss."""
    import torch

    from workbench.torch import strips

    torch.set_num_threads(rank_threads())
    net = unet(CHANNELS, width, CLASSES)
    model = net if alone else strips(net, comm)
    pixels, labels = image(slice(0, size) if alone else model.rows(size), size, "float32")
    loss = torch.nn.functional.cross_entropy(model(pixels), labels)
    loss.backward()
    value: float = loss.item()
    return value
