"""A dry run: shows the job and the command line of a start, and starts nothing."""

from __future__ import annotations

import shlex

from workbench.deploy import logs
from workbench.deploy.job_spec import allocation_of, job_spec, world_line
from workbench.deploy.record import Record
from workbench.deploy.request import record_of
from workbench.files import node_dirs
from workbench.launch import mpi_library
from workbench.launch.allocation import Allocation
from workbench.launch.launchers import launcher
from workbench.launch.options import ClusterOptions


def preview(options: ClusterOptions) -> str:
    """Return the job script of `MPICluster` with these options, and in comments below the command line of the world."""
    record = record_of(options)
    mpi = mpi_library.find(record.mpi)
    command = world_line(
        record,
        mpi,
        index=0,
        ranks=record.ranks,
        timeout=record.ready_within,
        shared_memory=node_dirs.shared_memory(record.id, make=False),
        log=logs.of_world(record, 0),
        allocation=_expected_allocation(record),
    )
    variables = {**command.defaults, **command.environment}
    lines = [f"# world 0, started by the head, {mpi}:"]
    lines += [f"#   {name}={value}" for name, value in sorted(variables.items())]
    lines.append(f"#   {shlex.join(command.argv)}")
    scheduler, spec = launcher(record.scheduler), job_spec(record)
    if verdict := scheduler.test_only(spec):
        lines.append(f"# {scheduler.name} says: {verdict}")
    return scheduler.script(spec) + "\n".join(lines) + "\n"


def _expected_allocation(record: Record) -> Allocation | None:
    """Return the expected allocation of the job, with placeholders for the names of nodes."""
    if not launcher(record.scheduler).batch:
        return allocation_of(record)
    nodes = record.resources.nodes or 1
    slots = record.resources.ranks_per_node or record.ranks
    return Allocation(record.scheduler, "JOB", tuple(f"NODE{i}" for i in range(nodes)), (slots,) * nodes)
