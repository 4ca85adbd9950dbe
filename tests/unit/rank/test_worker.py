"""A limit of memory that leaves a rank no room for a task is an error of the start."""

from __future__ import annotations

from support.raised import raises

from workbench.errors import LaunchError
from workbench.rank import worker


def test_a_memory_limit_below_the_use_of_a_rank_names_one_that_is_enough():
    with raises(LaunchError, option="memory") as error:
        worker.check_memory(10 << 20)
    enough = int(error.value.hint[2].split()[0].removesuffix("MiB."))
    worker.check_memory(enough << 20)
    worker.check_memory(None)
