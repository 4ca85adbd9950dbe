"""The same contract for frames over MPI, and for two ends that are the same rank of a world."""

from __future__ import annotations

import pytest
from support import contract
from support.ends import End, together
from support.world import World, on_ranks

from workbench import comm


@pytest.mark.parametrize("check", contract.CHECKS, ids=lambda check: check.__name__)
def test_between_ranks(check, world: World):
    world.run(check)


@on_ranks
async def test_within_a_rank(end: End):
    if end.rank:
        return  # all are alike
    before = comm.traffic()
    for check in contract.CHECKS:
        await together(check, end.folder)
    # a rank sends itself nothing over MPI
    assert [row for row in comm.traffic() if row["way"] == "mpi"] == [row for row in before if row["way"] == "mpi"]
