"""What tests of streams run on ranks and in tasks, which import this file by its name."""

from __future__ import annotations

import os
from unittest import mock

import numpy as np

from support.spmd import wait_for
from workbench.torch import batches


def numbered(chunks):
    """Return rows whose column is their number, and labels: the number, in 60 rows less 17 in the middle, by chunks."""
    import dask.dataframe as dd
    import pandas as pd

    numbers = np.arange(60)
    frame = dd.from_pandas(pd.DataFrame({"x": numbers.astype(float), "label": numbers}), npartitions=chunks)
    frame = frame[(frame["x"] < 20) | (frame["x"] >= 37)]
    return frame[["x"]], frame["label"]


def in_files(frame, folder, files):
    """Return a lazy frame of the rows of a frame, which are in this many Parquet files of a folder."""
    import dask.dataframe as dd

    for number, rows in enumerate(np.array_split(np.arange(len(frame)), files)):
        frame.iloc[rows].to_parquet(folder / f"part-{number}.parquet")
    return dd.read_parquet(folder)


def failing(block, number):
    """Return a block, unless it has a number."""
    if number in block:
        raise ValueError(f"row {number} is bad")
    return block


def slow(block, path):
    """Return a block once a file exists."""
    wait_for(path)
    return block


def net_of_images():
    import torch

    torch.manual_seed(0)
    layers = torch.nn.Conv2d(2, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(16, 3)
    return torch.nn.Sequential(*layers).double()


def growth(comm, stream, size, **options):
    """Return how many rows this rank has had, and the bytes by which its memory has grown in an epoch."""
    from workbench.bench.measuring import Watch

    # The first batch loads modules.
    next(batches(comm, stream, size=size, **options))
    watch = Watch()
    rows = sum(len(batch) for batch in batches(comm, stream, size=size, **options))
    return rows, watch.end().nbytes


def first_rows(comm, stream, size):
    """Return the first batch, and leave the others."""
    return next(batches(comm, stream, size=size, shuffle=None)).reshape(-1).tolist()


def killed(comm, stream, size):
    """Take batches until a rank is killed in the middle."""
    for rows in batches(comm, stream, size=size):
        if comm.rank == 1:
            os.kill(os.getpid(), 9)
        comm.allreduce(len(rows))


def without_a_rank(comm, stream):
    """Take a batch in a process of which the workbench does not know that it is a rank."""
    with mock.patch("workbench.session.current._workers", []):
        next(batches(comm, stream, size=comm.size))
