"""A dry run: what would be started, and nothing is."""

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


def preview(given: ClusterOptions) -> str:
    """Return what `MPICluster` with these options would run, and start nothing.

    Returns
    -------
    text : str
        The job's script, and the command line of the world in comments below it.
    """
    record = record_of(given)
    found = mpi_library.find(record.mpi)
    command = world_line(
        record,
        found,
        index=0,
        ranks=record.ranks,
        timeout=record.ready_within,
        shared_memory=node_dirs.shared_memory(record.id, make=False),
        log=logs.of_world(record, 0),
        around=_expected(record),
    )
    set_here = {**command.defaults, **command.environment}
    lines = [f"# world 0, started by the head, {found}:"]
    lines += [f"#   {name}={value}" for name, value in sorted(set_here.items())]
    lines.append(f"#   {shlex.join(command.argv)}")
    its, spec = launcher(record.scheduler), job_spec(record)
    if verdict := its.test_only(spec):
        lines.append(f"# {its.name} says: {verdict}")
    return its.script(spec) + "\n".join(lines) + "\n"


def _expected(record: Record) -> Allocation | None:
    """Return the allocation that the job is going to have, with nodes by the names of nobody."""
    if not launcher(record.scheduler).batch:
        return allocation_of(record)
    nodes = record.resources.nodes or 1
    slots = record.resources.ranks_per_node or record.ranks
    return Allocation(record.scheduler, "JOB", tuple(f"NODE{i}" for i in range(nodes)), (slots,) * nodes)
