"""What a job asks its scheduler for, as a value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Resources:
    """What a cluster's job asks for beside ranks, threads and memory; None: not asked for.

    Notes
    -----
    Once a record is made of a request, `walltime` is the one that the job is submitted with.
    """

    nodes: int | None = None
    """Number of nodes."""
    ranks_per_node: int | None = None
    """Most ranks that a node gets."""
    walltime: int | None = None
    """Seconds until the scheduler ends the job."""
    queue: str | None = None
    """Queue (PBS) or partition (SLURM)."""
    account: str | None = None
    """Account or project that pays."""
    constraint: str | None = None
    """Features that the nodes have to have."""
    reservation: str | None = None
    """Reservation to run in."""
    gpus: int | None = None
    """GPUs of each rank."""
    extra: tuple[str, ...] = ()
    """More directives, each as it would stand behind ``#SBATCH`` or ``#PBS``."""
    preset: str | None = None
    """Section of ``jobqueue.yaml`` with the site's settings; None: the scheduler's own."""


def option_of(field: str) -> str:
    """Return the option of a start that a field of `Resources` is."""
    return "gpus_per_rank" if field == "gpus" else field
