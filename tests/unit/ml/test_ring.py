"""Searches for the rows near own rows, whose queries visit all ranks: here the ranks are threads."""

from __future__ import annotations

import itertools
import pickle
import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from scipy import sparse
from support.patience import DEADLINE

from workbench.ml.engine.parts import LocalParts
from workbench.ml.neighbors.part import NeighborsPart
from workbench.ml.neighbors.search import Nearest, Within, find_each, find_in_ring

NEAREST = Nearest(n_neighbors=4, metric="euclidean", keywords={})
WITHIN = Within(radius=1.5, metric="euclidean", keywords={})


def numbers():
    return np.random.default_rng(3)


@dataclass
class Ring:
    """The messages of a number of ranks."""

    size: int
    largest: int = 0
    values: dict[int, bool] = field(default_factory=dict)

    def __post_init__(self):
        self.inboxes = [queue.SimpleQueue() for _ in range(self.size)]
        self.barrier = threading.Barrier(self.size, timeout=DEADLINE)


@dataclass
class RingComm:
    """A communicator that sends to the next rank, and receives from the one before."""

    ring: Ring
    rank: int

    @property
    def size(self):
        return self.ring.size

    def sendrecv(self, message, dest, *, source):
        assert dest == (self.rank + 1) % self.size
        assert source == (self.rank - 1) % self.size
        pickled = pickle.dumps(message)
        self.ring.largest = max(self.ring.largest, len(pickled))
        self.ring.inboxes[dest].put(pickled)
        return pickle.loads(self.ring.inboxes[self.rank].get(timeout=DEADLINE))  # noqa: S301  (sent by this test)

    def allreduce(self, value):
        self.ring.values[self.rank] = value
        self.ring.barrier.wait()
        total = sum(self.ring.values.values())
        self.ring.barrier.wait()
        return total


def parts_of(X, sizes):
    cuts = itertools.pairwise(np.cumsum([0, *sizes]))
    return [NeighborsPart(X[start:stop], None, None, int(start)) for start, stop in cuts]


def in_ring(X, sizes, search):
    """Return what the parts keep, and the bytes of the largest message."""
    ring = Ring(len(sizes))
    parts = parts_of(X, sizes)

    def run(rank):
        try:
            find_in_ring(parts[rank], search, RingComm(ring, rank))
        except BaseException:
            ring.barrier.abort()
            raise

    with ThreadPoolExecutor(ring.size) as threads:
        list(threads.map(run, range(ring.size)))
    return [part.kept() for part in parts], ring.largest


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("sizes", [(60,), (33, 27), (1, 20, 19, 20), (30, 0, 30)])
@pytest.mark.parametrize("search", [NEAREST, WITHIN, replace(WITHIN, sort=True)])
def test_a_ring_finds_what_one_part_finds(form, sizes, search):
    # Rows of a grid: many distances are equal, and the order of the ranks counts.
    X = form(numbers().integers(0, 3, size=(60, 4)).astype(float))
    search = replace(search, step=56)
    alone = LocalParts(parts_of(X, (60,)))
    find_each(alone, search)
    [expected] = alone.each("kept")
    kept, _ = in_ring(X, sizes, search)

    for arrays, others in zip(zip(*kept, strict=True), expected, strict=True):
        for array, other in zip(np.concatenate(arrays), others, strict=True):
            np.testing.assert_array_equal(array, other)


def test_messages_of_a_ring_do_not_grow_with_the_rows():
    search = replace(NEAREST, step=80)
    _, few = in_ring(numbers().normal(size=(200, 3)), (100, 100), search)
    _, many = in_ring(numbers().normal(size=(2000, 3)), (1000, 1000), search)

    assert many == few
