"""Submit the job of a cluster, and remove a cluster whose start fails; or show in a dry run what would start."""

from __future__ import annotations

import shlex
import threading
from typing import NoReturn, Self

from workbench.comm import certificates
from workbench.deploy import ended, logs, registry
from workbench.deploy.folder import ClusterFolder
from workbench.deploy.job import ClusterJob
from workbench.deploy.job_spec import allocation_of, job_spec, world_line, write_dask_settings
from workbench.deploy.record import Record
from workbench.deploy.request import record_of
from workbench.deploy.stop import remove
from workbench.errors import ClusterExists, LaunchError, RecordError, SchedulerTimeout, WorkbenchError
from workbench.hints import Command
from workbench.host import node_dirs
from workbench.launch import command, mpi_library
from workbench.launch.allocation import Allocation, allocation_hint
from workbench.launch.launchers import launcher, poller
from workbench.launch.multinode import requested_counts
from workbench.launch.options import ClusterOptions


class ClusterStart(ClusterJob):
    """The start of one cluster: its submission, and its removal if the start fails.

    Parameters
    ----------
    record
        The requested cluster.
    renamable
        Whether the cluster may get another free name if the one in `record` is taken meanwhile.
    requested
        The scheduler that was requested by its name, if any.
    """

    def __init__(self, record: Record, *, renamable: bool = False, requested: str | None = None) -> None:
        super().__init__(record)
        self._renamable = renamable
        self._requested = requested
        # `remove` may run while another thread is still submitting the job.
        self._submitting = threading.Lock()
        self._given_up = False

    @classmethod
    def of(cls, options: ClusterOptions) -> Self:
        """Return the start of a requested cluster, not submitted yet; raises as `record_of`."""
        return cls(record_of(options), renamable=options.name is None, requested=options.scheduler)

    def hint(self) -> str:
        """Return a hint for the user about the chosen scheduler; empty if there is none."""
        return allocation_hint(self._requested, self.record.scheduler)

    @command.insisting()
    def submit(self) -> None:
        """Make the cluster's folder and key, and submit its job; once.

        Raises
        ------
        ClusterExists
            If another cluster has the name.
        LaunchError
            If the job was not accepted.
        RecordError
            If the folder cannot be written.
        """
        with self._submitting:
            if self._given_up or self._id is not None:
                return
            try:
                self._make_folder()
            except RecordError:
                raise
            except OSError as error:
                raise RecordError(
                    f"cluster {self.record.name!r} cannot be started: {error}. {self.folder.path.parent} must be a "
                    "folder that you can write to, with free space on its disk.",
                    hint="Check the folder, or set JUPYTER_DATA_DIR to another folder.",
                ) from error
            self._id = self.launcher.submit(job_spec(self.record, self.folder))
            poller.forget(self.record.scheduler, self._id)
            if self.batch and not self.folder.owns_lease():
                # The cluster was stopped meanwhile, by a process that did not know the job.
                self.launcher.cancel(self._id)

    def _make_folder(self) -> None:
        if self.batch:
            self.record = self.record.replace(system=self.launcher.system() or "")
        while True:
            try:
                registry.create(self.record, self.folder)
                break
            except ClusterExists:
                if not self._renamable:
                    raise
                # Another process has taken the name since it was chosen.
                self.record = self.record.replace(name=registry.free_name())
                self.folder = ClusterFolder.of(self.record)
        certificates.make(self.folder.path, self.record.name)
        write_dask_settings(self.record, self.folder)

    def abandon(self, error: BaseException) -> NoReturn:
        """Remove everything of the cluster, and raise the error that ended its start; a second call only raises.

        Raises
        ------
        SchedulerTimeout
            Instead, if the scheduler does not answer: the record stays then, since a job may exist.
        """
        if self._given_up:
            raise error
        if isinstance(error, WorkbenchError):
            cause = self.start_error or error
            self.note(ended.FAILED, cause.message, cause.hint)
        else:
            self.note(ended.STOPPED, "its start was canceled")
        try:
            self.remove()
        except LaunchError as no_answer:
            reason = error.message if isinstance(error, WorkbenchError) else str(error) or type(error).__name__
            raise SchedulerTimeout(
                f"{reason} The job of the cluster may have been submitted, and could not be canceled.",
                hint=(
                    "When the scheduler answers again, search for the cluster with ",
                    Command("list"),
                    ", and stop the cluster with ",
                    Command("stop", self.record.name),
                    ".",
                ),
            ) from no_answer
        raise error

    def remove(self) -> None:
        """Remove everything of the cluster: job, record, key, sockets."""
        with self._submitting:
            self._given_up = True
        remove(self)


def preview(options: ClusterOptions) -> str:
    """Return the job script of `MPICluster` with these options, and in comments below the command line of the world."""
    record = record_of(options)
    folder = ClusterFolder.of(record)
    mpi = mpi_library.find(record.mpi)
    line = world_line(
        record,
        folder,
        mpi,
        index=0,
        ranks=record.ranks,
        timeout=record.ready_within,
        shared_memory=node_dirs.shared_memory(record.id, make=False),
        log=logs.of_world(folder.logs, 0),
        allocation=_expected_allocation(record),
    )
    variables = {**line.defaults, **line.environment}
    lines = [f"# the world, started by the head, {mpi}:"]
    lines += [f"#   {name}={value}" for name, value in sorted(variables.items())]
    lines.append(f"#   {shlex.join(line.argv)}")
    scheduler, spec = launcher(record.scheduler), job_spec(record, folder)
    lines += [f"# {notice}" for notice in scheduler.notices(record.resources, record.memory)]
    if verdict := scheduler.test_only(spec):
        lines.append(f"# {scheduler.name} reports: {verdict}")
    return scheduler.script(spec) + "\n".join(lines) + "\n"


def _expected_allocation(record: Record) -> Allocation | None:
    """Return the expected allocation of the job, with placeholders for the names of nodes."""
    if not launcher(record.scheduler).batch:
        return allocation_of(record)
    nodes = record.resources.nodes or 1
    slots = requested_counts(record.ranks, nodes, record.resources.ranks_per_node or record.ranks)
    return Allocation(record.scheduler, "JOB", tuple(f"NODE{i}" for i in range(nodes)), slots)
