"""A dry run: what would be started, and nothing is."""

from __future__ import annotations

import shlex
from typing import Any

from workbench import scratch
from workbench.launch import mpi
from workbench.launch.choose import launcher
from workbench.launch.request import job_spec, request, world_line


def preview(ranks: int | None = None, **options: Any) -> str:
    """Return what `MPICluster` with these options would run, and start nothing.

    Returns
    -------
    text : str
        The job's script, and the command line of the world in comments below it.
    """
    record = request(ranks, **options)
    found = mpi.find(record.mpi)
    command = world_line(
        record,
        found,
        index=0,
        ranks=record.ranks,
        timeout=record.deadline - record.created,
        shared_memory=scratch.shared_memory(record.id, make=False),
    )
    set_here = {**command.defaults, **command.environment}
    lines = [f"# world 0, started by the head, {found}:"]
    lines += [f"#   {name}={value}" for name, value in sorted(set_here.items())]
    lines.append(f"#   {shlex.join(command.argv)}")
    return launcher(record.scheduler).script(job_spec(record)) + "\n".join(lines) + "\n"
