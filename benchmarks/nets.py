"""What the ranks of the training bench do: nets of three sizes, trained data-parallel on our process group or gloo's.

All begin with the same weights and train on a fixed batch per rank, so the losses of two ways can be compared.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.torch import batches, distributed, tensor
from workbench.torch.context import rank_threads

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

OURS, GLOO = "workbench", "gloo"
"""Backends of torch.distributed."""
BATCHES, STREAM, LOADER = "batches", "stream", "DataLoader"
"""Ways to feed rows."""
RATE, BATCH = 0.01, 32
"""Of stochastic gradient descent; rows of a batch on each rank."""
WARM = 2
"""Steps before the time is taken: the first ones allocate, and DDP arranges its buckets."""
_CLASSES = 10
# Width of an image, and of the rows that are fed; files of a rank.
_IMAGE, _COLUMNS, _FILES = 32, 32, 8


@dataclass(frozen=True)
class Turn:
    """What a training came to on one rank."""

    seconds: float
    """Time of the steps that count."""
    losses: list[float]
    """Of all steps, the mean of the ranks."""
    listening: int = 0
    """Sockets that listen on the rank while it trains, beyond those of before."""


def _dense(*widths: int) -> Any:
    from torch import nn

    layers: list[Any] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _resnet() -> Any:
    """Return a residual net of 14 layers and 0.17 million weights (He et al., 2016, section 4.2, with n = 2)."""
    import torch
    from torch import nn

    def convolution(before: int, after: int, stride: int = 1) -> list[Any]:
        return [nn.Conv2d(before, after, 3, stride, padding=1, bias=False), nn.BatchNorm2d(after)]

    class Block(nn.Module):
        def __init__(self, before: int, after: int, stride: int) -> None:
            super().__init__()
            self.straight = nn.Sequential(
                *convolution(before, after, stride), nn.ReLU(inplace=True), *convolution(after, after)
            )
            same = before == after
            self.shortcut = nn.Identity() if same else nn.Conv2d(before, after, 1, stride, bias=False)

        def forward(self, images: Any) -> Any:
            return torch.relu(self.straight(images) + self.shortcut(images))

    blocks: list[Any] = []
    for before, after, stride in ((16, 16, 1), (16, 32, 2), (32, 64, 2)):
        blocks += [Block(before, after, stride), Block(after, after, 1)]
    ends = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, _CLASSES)]
    return nn.Sequential(*convolution(3, 16), nn.ReLU(inplace=True), *blocks, *ends)


_MAKERS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "mlp": (lambda: _dense(1024, 2048, 2048, 2048, _CLASSES), (1024,)),
    "small": (lambda: _dense(*[64] * 7, _CLASSES), (64,)),
    "resnet": (_resnet, (3, _IMAGE, _IMAGE)),
}
"""Each net, and the shape of a row: 10.5 million weights; 7 layers of 64; images of 32 x 32."""
NETS = tuple(_MAKERS)


def make(net: str, dtype: str) -> Any:
    """Return a net with its first weights."""
    import torch

    torch.manual_seed(0)
    return _MAKERS[net][0]().to(getattr(torch, dtype))


def batch(net: str, dtype: str, rank: int) -> tuple[Any, Any]:
    """Return the rows of a rank, and their labels."""
    import torch

    random = np.random.default_rng(rank)
    rows = torch.from_numpy(random.standard_normal((BATCH, *_MAKERS[net][1])))
    return rows.to(getattr(torch, dtype)), torch.from_numpy(random.integers(0, _CLASSES, BATCH))


@contextmanager
def _gloo(comm: Intracomm) -> Iterator[None]:
    """Initialize torch.distributed with gloo on the loopback interface, where the ranks meet by a file."""
    import torch
    import torch.distributed as dist

    folder = comm.bcast(tempfile.mkdtemp(prefix="workbench-bench-") if comm.rank == 0 else None)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(rank_threads())
    try:
        store = dist.FileStore(str(Path(folder) / "store"), comm.size)
        dist.init_process_group(GLOO, store=store, rank=comm.rank, world_size=comm.size)
        yield
        comm.Barrier()
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        if comm.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)


_GROUPS: dict[str, Callable[[Intracomm], AbstractContextManager[Any]]] = {OURS: distributed, GLOO: _gloo}


def train(comm: Intracomm, backend: str, net: str, steps: int, dtype: str) -> Turn:
    """Train a net so many steps by DDP on a backend. Runs on every rank."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    rows, labels = batch(net, dtype, comm.rank)
    before, losses = _listening(), []
    with _GROUPS[backend](comm):
        model = DistributedDataParallel(make(net, dtype), gradient_as_bucket_view=True)
        optimizer = torch.optim.SGD(model.parameters(), RATE)

        def take(steps: int) -> None:
            for _ in range(steps):
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(rows), labels)
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())

        take(WARM)
        comm.Barrier()
        begin = time.perf_counter()
        take(steps)
        took, listening = time.perf_counter() - begin, _listening() - before
    mean = comm.allreduce(torch.stack(losses).double().numpy()) / comm.size
    return Turn(took, mean.tolist(), listening)


def _listening() -> int:
    import psutil

    return sum(one.status == psutil.CONN_LISTEN for one in psutil.Process().net_connections("all"))


def block(comm: Intracomm, rows: int) -> tuple[Any, Any]:
    """Return the rows of a rank to be fed, and their numbers: shapes (rows, columns) and (rows,)."""
    X = np.random.default_rng(comm.rank).standard_normal((rows, _COLUMNS), np.float32)
    return X, np.arange(comm.rank * rows, (comm.rank + 1) * rows)


def feed(comm: Intracomm, X: Any, y: Any, way: str, epoch: int) -> tuple[float, int]:
    """Take all batches of an epoch; return the time, and the sum of the numbers of the rows. Runs on every rank."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    def loader() -> Any:
        order = torch.Generator().manual_seed(epoch)
        return DataLoader(TensorDataset(tensor(X), tensor(y)), BATCH, shuffle=True, generator=order)

    return _fed(comm, partial(batches, comm, X, y, size=BATCH * comm.size, seed=epoch) if way == BATCHES else loader)


def _fed(comm: Intracomm, taken: Callable[[], Any]) -> tuple[float, int]:
    comm.Barrier()
    begin = time.perf_counter()
    # The sums are those of the bench, and not part of the time.
    fed = [numbers for _, numbers in taken()]
    took = time.perf_counter() - begin
    return took, sum(int(numbers.sum()) for numbers in fed)


def write(comm: Intracomm, X: Any, y: Any, folder: str) -> None:
    """Write the rows of a rank, and their numbers as the last column, to Parquet files. Runs on every rank."""
    import pandas as pd

    frame = pd.DataFrame(X, columns=[f"x{number}" for number in range(_COLUMNS)]).assign(number=y)
    for file, rows in enumerate(np.array_split(np.arange(len(frame)), _FILES)):
        frame.iloc[rows].to_parquet(Path(folder) / f"{comm.rank:04}-{file}.parquet")


def feed_files(comm: Intracomm, data: Any, folder: str, way: str, epoch: int) -> tuple[float, int]:
    """Take all batches of an epoch from files, as `feed` does; `data` is their stream. Runs on every rank.

    The peer is an iterable dataset that yields the rows of the files of the rank.
    """
    import pandas as pd
    from torch.utils.data import DataLoader, IterableDataset

    class Rows(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            random = np.random.default_rng(epoch)
            for file in random.permutation(sorted(Path(folder).glob(f"{comm.rank:04}-*.parquet"))):
                frame = pd.read_parquet(file)
                X, y = tensor(frame.iloc[:, :-1].to_numpy(copy=True)), tensor(frame["number"].to_numpy(copy=True))
                yield from ((X[row], y[row]) for row in random.permutation(len(X)))

    if way == STREAM:
        return _fed(comm, partial(batches, comm, data, size=BATCH * comm.size, seed=epoch))
    return _fed(comm, lambda: DataLoader(Rows(), BATCH))
