"""The verb ``profile``: what the ranks of a cluster did since they were started."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.commands.actions import connected

if TYPE_CHECKING:
    from workbench.cluster import MPICluster
    from workbench.deploy.registry import Record
    from workbench.metrics.profile_frame import ProfileFrame


def profile(record: Record, bound: MPICluster | None = None) -> ProfileFrame:
    """Return what each rank of a cluster did since it was started."""
    from distributed import Client

    from workbench.metrics.profile import since_start

    with connected(record, bound) as cluster, Client(cluster, set_as_default=False) as client:
        return since_start(client)
