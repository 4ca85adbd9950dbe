"""The same contract where frames go by MPI, and where the ends are members of a world but one and the same rank."""

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
    # a rank does not speak with itself by MPI
    assert [row for row in comm.traffic() if row["way"] == "mpi"] == [row for row in before if row["way"] == "mpi"]
