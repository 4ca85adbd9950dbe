"""Clusters on several nodes: where their ranks are, and what is left of them after their end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.daemons import running
from support.folders import folders_of
from support.slurm import NAMES, Slurm
from support.training import place
from workbench import MPICluster
from workbench.deploy.folder import ClusterFolder
from workbench.deploy.job import ClusterJob
from workbench.deploy.record import Record

if TYPE_CHECKING:
    from distributed import Client


def places(cluster: MPICluster, client: Client) -> list[tuple[int, int, int, str]]:
    """Return what `place` returns on the workers, in their order."""
    told = client.run(place)
    return [told[rank["address"]] for rank in cluster.ranks]


def two_on_each(ranks: int) -> list[tuple[int, int, int, str]]:
    """Return the expected `places` where rank i is worker i, and each node has two."""
    return [(rank, rank, ranks, NAMES[rank // 2]) for rank in range(ranks)]


def numbers(record: Record) -> set[str]:
    """Return Slurm's numbers of the jobs that a cluster has, without those that are known to have ended."""
    return {job.partition(".")[0] for job in ClusterJob(record).all_jobs()}


def remains(slurm: Slurm, record: Record, jobs: set[str]) -> list[str]:
    """Return texts of what is left of a cluster on this host and in the queue."""
    found = [f"job {job}" for job in jobs & set(slurm.jobs())]
    found += [str(process) for process in running(record.id[:16])]
    found += map(str, folders_of(record))
    return found + [str(ClusterFolder.of(record).path)] * ClusterFolder.of(record).path.exists()
