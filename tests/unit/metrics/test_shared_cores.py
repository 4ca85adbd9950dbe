from __future__ import annotations

import pytest

from workbench.metrics.update import SharedCores, shared_cores


@pytest.mark.parametrize(
    ("nodes", "cpus", "shared"),
    [
        ([0, 0], [[0, 1], [0, 1]], []),
        ([0, 0], [[0], [1]], []),
        ([0, 0, 0], [[0, 1]] * 3, [(0, 2, (0, 1, 2))]),
        # bound to one core, although the node has cores for all
        ([0, 0, 0], [[3], [1, 2, 4, 5], [3]], [(0, 1, (0, 2))]),
        # bound to cores that others are bound to, too
        ([0, 0, 0, 0, 0], [[0], [1], [2], [0], [1]], [(0, 3, (0, 1, 2, 3, 4)), (0, 1, (0, 3)), (0, 1, (1, 4))]),
        # none of the sets is shared alone
        ([0, 0, 0, 0], [[0, 1], [1, 2], [0, 2], [0, 1]], [(0, 3, (0, 1, 2, 3))]),
        # cores of other nodes have the same numbers
        ([0, 1, 1], [[0], [0], [0]], [(1, 1, (1, 2))]),
        ([], [], []),
    ],
)
def test_cores_are_shared_if_more_ranks_may_use_no_other_core(nodes, cpus, shared):
    assert shared_cores(nodes, cpus) == tuple(SharedCores(*each) for each in shared)
