"""Batches as parts of the rows of a rank."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from support.patience import DEADLINE
from support.raised import raises

from workbench.errors import InvalidRequest
from workbench.torch import batches, fit
from workbench.torch.exchange import cut


def test_a_program_may_write_to_a_batch_also_what_has_a_gradient():
    rows, weight = torch.ones(6, 2), torch.full((2,), 3.0, requires_grad=True)
    first, second = (batch for (batch,) in cut([rows], [4, 2]))

    first.mul_(weight)
    second[:, 0] = weight[0]
    first.sum().backward()

    assert weight.grad.tolist() == [4.0, 4.0]
    assert second.tolist() == [[3.0, 1.0]] * 2


class Two:
    """The communicator of one of two ranks, which are threads."""

    size = 2

    def __init__(self, rank, met, said):
        self.rank, self._met, self._said = rank, met, said

    def allgather(self, value):
        self._said[self.rank] = value
        self._met.wait()
        said = [*self._said]
        self._met.wait()
        return said


def on_two(function):
    """Return what a function returns on each of two ranks."""
    met, said = threading.Barrier(2, timeout=DEADLINE), [None, None]
    with ThreadPoolExecutor(2) as pool:
        return [*pool.map(lambda rank: function(Two(rank, met, said)), range(2))]


@pytest.mark.parametrize("shuffle", ["exchange", "local", None])
def test_a_seed_that_each_rank_would_draw_anew_is_refused(shuffle):
    with raises(InvalidRequest, option="seed", given=None, allowed="a whole number from 0 on, the same on all ranks"):
        on_two(lambda comm: batches(comm, np.ones(8), size=2, seed=None, shuffle=shuffle))
    with pytest.raises(InvalidRequest):
        fit(None, None, None, None, seed=None, shuffle=shuffle)


@pytest.mark.parametrize(
    ("of_rank", "words"),
    [
        (lambda rank: {"size": 2 + rank}, "the same size on all ranks. Rank 0 passes 2, and rank 1 passes 3"),
        (lambda rank: {"seed": rank}, "the same seed on all ranks. Rank 0 passes 0, and rank 1 passes 1"),
        (lambda rank: {"shuffle": [None, "local"][rank]}, "shuffle on all ranks. Rank 0 passes None, and .* 'local'"),
        (
            lambda rank: {"y": np.ones(8, ["int64", "float64"][rank])},
            r"the same columns .* \['float64 of shape \(3,\)', 'int64 of shape \(\)'\], .* 'float64 of shape \(\)'\]",
        ),
    ],
    ids=["size", "seed", "shuffle", "types"],
)
def test_options_that_differ_between_ranks_are_refused_on_both(of_rank, words):
    def refused(comm):
        with pytest.raises(InvalidRequest, match=words):
            batches(comm, np.ones((8, 3)), **({"size": 2} | of_rank(comm.rank)))
        return comm.rank

    assert on_two(refused) == [0, 1]


def test_each_rank_may_shuffle_its_own_rows_by_another_seed():
    def lengths(comm):
        return [len(rows) for rows in batches(comm, np.ones((8, 3)), size=4, seed=comm.rank, shuffle="local")]

    assert on_two(lengths) == [[2] * 4] * 2
