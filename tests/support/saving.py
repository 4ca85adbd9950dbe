"""Functions on the ranks for tests of checkpoints."""

from __future__ import annotations

import os
import resource

import numpy as np
import pandas as pd
from distributed import Event

from workbench.checkpoint import arrays


def uneven(comm):
    """Return blocks of very different numbers of rows, some of them with more than one chunk, and some without rows."""
    rows = [0, 1000, 7, 0][comm.rank % 4]
    return np.random.default_rng(comm.rank).normal(size=(rows, 3))


def uneven_table(comm):
    """Return blocks of a dataframe, of which one has no rows."""
    rows = [0, 10, 7, 300][comm.rank % 4]
    number = np.arange(rows) + 1000 * comm.rank
    words = pd.Categorical(np.where(number % 2, "odd", "even"), categories=["odd", "even", "neither"])
    return pd.DataFrame({"number": number, "word": words}, index=pd.Index(number, name="key"))


def with_small_chunks(_, nbytes):
    """Set the size of a chunk file."""
    arrays.CHUNK = nbytes


def limited(_, nbytes):
    """Let this rank write files of this size only, as a full disk does; -1 for any size."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, -1))


def opens_slowly(comm, begins, ends):
    """Have rank 1 wait before its next chunk file, with one event when the wait begins and one for its end."""
    if comm.rank != 1:
        return
    before = os.open

    def wait(path, flags, *args, **kwargs):
        if flags & os.O_EXCL and str(path).rpartition("/")[2].startswith("c."):
            os.open = before
            Event(begins).set()
            Event(ends).wait("60 s")
        return before(path, flags, *args, **kwargs)

    os.open = wait
