"""Do the same with mpi4py's own communicator and with ours, on ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from support.ends import End

Case = Callable[[Any], Any]


def communicators() -> tuple[Any, Any]:
    """Return a plain communicator of all ranks, and one of ours; collective."""
    from mpi4py import MPI

    from workbench.mpi.call_state import CallState
    from workbench.mpi.communicator import Communicator

    return MPI.COMM_WORLD.Dup(), Communicator(MPI.COMM_WORLD.Dup(), CallState())


async def same(end: End, cases: Mapping[str, Case]) -> None:
    """Check that each case has the same result either way."""
    plain, ours = communicators()
    for name, case in cases.items():
        expected, got = outcome(case, plain), outcome(case, ours)
        assert equal(got, expected), f"{name}: {got!r}, where mpi4py has {expected!r}"
        assert ours.watch.operation is None, name
        # a case that has gone wrong on one rank is not to hang the next
        await end.gather()
    assert ours.watch.count >= len(cases)
    ours.free_derived()
    plain.Free()


def outcome(case: Case, comm: Any) -> Any:
    """Return what a case returns, or the kind of error that it raises."""
    try:
        return case(comm)
    except (TypeError, ValueError, KeyError) as error:
        return type(error), str(error)


def equal(one: Any, other: Any) -> bool:
    """Return whether results are equal, arrays in them too."""
    try:
        np.testing.assert_equal(one, other)
    except AssertionError:
        return False
    return type(one) is type(other)
