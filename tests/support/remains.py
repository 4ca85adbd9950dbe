"""What is left of a cluster of jobs after its end."""

from __future__ import annotations

from support.daemons import running
from support.slurm import Slurm
from workbench import scratch
from workbench.launch import queued
from workbench.record import Record


def numbers(record: Record) -> set[str]:
    """Return SLURM's numbers of the jobs that a cluster has, or has had."""
    return {job.partition(".")[0] for job in queued.all_jobs(record)}


def remains(slurm: Slurm, record: Record, jobs: set[str]) -> list[str]:
    """Return in words what is left of a cluster on this host and in the queue."""
    found = [f"job {job}" for job in jobs & set(slurm.jobs())]
    found += [str(process) for process in running(record.name)]
    folders = [kind("probe").parent for kind in (scratch.sockets, scratch.spill, scratch.shared_memory)]
    found += [str(path) for folder in folders for path in folder.glob(f"{record.id[:8]}*")]
    scratch.remove("probe")
    return found + [str(record.folder)] * record.folder.exists()
