"""Clusters of the two protocols, alive at the same time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workbench.cluster import MPICluster

ARMS = ("mpi", "tcp")
"""Protocols that are compared, ours first."""


@contextmanager
def both(ranks: int) -> Iterator[dict[str, MPICluster]]:
    """Start a cluster of each protocol, by its name, and end them."""
    from workbench.cluster import MPICluster

    with ExitStack() as stack:
        yield {arm: stack.enter_context(MPICluster(ranks, protocol=arm, quiet=True)) for arm in ARMS}
