"""Jobs on this host, each a process in a separate session: jobs outlive the kernel that started them.

A shell starts the job in the background and exits. So the job gets no signal of the kernel's terminal, and no zombie of
it remains in the kernel.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from workbench.errors import InvalidRequest, LaunchError, named
from workbench.gpu import visible
from workbench.hints import Option
from workbench.host import debug_log
from workbench.host.processes import start_time
from workbench.launch.allocation import current_allocation, scrub, scrub_rank
from workbench.launch.batch import write_script
from workbench.launch.interface import JobSpec, JobState, JobStatus, Launcher
from workbench.launch.options import WITHOUT_SCHEDULER, Resources
from workbench.text import count

# Seconds for a shell to start the job in the background.
_SUBMIT = 10.0
# Seconds for the head of a canceled start to end, before the head is killed.
_CLOSE = 10.0


class LocalLauncher(Launcher):
    """Runs the job's script on this host; a job id is ``PID:START``, so that a reused PID is another job."""

    name = "local"
    batch = False

    def resolve(self, resources: Resources, *, ranks: int, threads: int, memory: int | None) -> Resources:
        """Reject all options that need a batch scheduler, and more GPUs than the node has."""
        for name, value in asdict(resources).items():
            if value not in (None, ()) and name not in WITHOUT_SCHEDULER:
                raise InvalidRequest(
                    f"{named(name)} {value!r} needs a batch scheduler, but --scheduler {self.name} uses none.",
                    option=name,
                    given=value,
                    hint=("Omit the option, or use ", Option("scheduler"), f" slurm or pbs.{self._allocation_hint()}"),
                )
        if resources.gpus_per_rank:
            self._check_gpus(resources.gpus_per_rank, ranks)
        return resources

    def _check_gpus(self, per_rank: int, ranks: int) -> None:
        """Reject more GPUs than this host has; those that `CUDA_VISIBLE_DEVICES` hides do not count."""
        here = min(map(len, visible.of_node(os.environ, visible.installed()).values()))
        if per_rank * ranks > here:
            raise InvalidRequest(
                f"{named('gpus_per_rank')} {per_rank} is not valid for {count(ranks, 'rank')}: the world needs "
                f"{count(per_rank * ranks, 'GPU')}, and this host has {here or 'no'} {'GPU' if here == 1 else 'GPUs'}.",
                option="gpus_per_rank",
                given=per_rank,
                allowed=f"up to {here // ranks}" if here >= ranks else "omitted",
                hint="Omit the option: then all ranks share all GPUs of this host.",
            )

    def _allocation_hint(self) -> str:
        allocation = current_allocation()
        return f" To use the nodes of {allocation.describe}, use --scheduler here." if allocation else ""

    def script(self, spec: JobSpec) -> str:
        """Return a shell script that becomes the head."""
        lines = [
            "#!/bin/sh",
            f"# Cluster {spec.name}: {count(spec.ranks, 'rank')} of {count(spec.threads, 'thread')} each on this host",
        ]
        lines += [f"export {name}={shlex.quote(value)}" for name, value in spec.environment]
        lines += [f"exec {shlex.join(spec.command)} >>{shlex.quote(str(spec.log))} 2>&1", ""]
        return "\n".join(lines)

    def submit(self, spec: JobSpec) -> str:
        """Write the script and run it in the current folder, away from the terminal's signals."""
        environment, removed = self._scrub(os.environ)
        write_script(spec, self.script(spec), removed)
        try:
            # The shell ends immediately, so the job is not a child of this process: the job never becomes a zombie, and
            # Python does not warn if this process ends first.
            completed = subprocess.run(
                ["/bin/sh", "-c", '/bin/sh "$0" </dev/null >/dev/null 2>&1 & echo $!', str(spec.script)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                start_new_session=True,
                cwd=spec.directory,
                timeout=_SUBMIT,
                check=True,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise LaunchError(
                f"cannot run {spec.script}: {error}.", hint="Check the permissions of the folder."
            ) from error
        pid = int(completed.stdout)
        debug_log.started(pid, "the job of cluster %r", spec.name)
        return f"{pid}:{start_time(pid) or 0:.0f}"

    def _scrub(self, environment: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
        return scrub(environment)

    def receipt(self, text: str) -> str | None:
        """Return None: the record of a cluster on this host names the process of the head."""
        return None

    def statuses(self, jobs: Sequence[str]) -> dict[str, JobStatus]:
        """Return RUNNING for each job whose process exists."""
        ended = JobStatus(JobState.UNKNOWN, "its process has ended", unknown_to_scheduler=True)
        return {job: JobStatus(JobState.RUNNING) if _runs(job) else ended for job in jobs}

    def cancel(self, job: str) -> None:
        """Terminate the head, and kill it after the close timeout; its world ends with it."""
        deadline = time.monotonic() + _CLOSE
        for number, patience in ((signal.SIGTERM, deadline), (signal.SIGKILL, deadline + 5)):
            if not _runs(job):
                return
            pid = int(job.partition(":")[0])
            debug_log.write("process", "%s is sent to process %d", number.name, pid)
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                return
            while _runs(job) and time.monotonic() < patience:
                time.sleep(0.02)


def _runs(job: str) -> bool:
    pid, _, job_start = job.partition(":")
    process_start = start_time(int(pid))
    return process_start is not None and f"{process_start:.0f}" == job_start


class HereLauncher(LocalLauncher):
    """As `LocalLauncher`, inside an existing allocation: worlds run on its nodes, and the allocation outlives them."""

    name = "here"

    def resolve(self, resources: Resources, *, ranks: int, threads: int, memory: int | None) -> Resources:
        """Reject all options that request a new job, and a process outside of an allocation."""
        if current_allocation() is None:
            raise InvalidRequest(
                "scheduler 'here' cannot be used: this process is not inside a job of Slurm or PBS.",
                option="scheduler",
                given="here",
                hint=("Allocate nodes first (salloc, qsub -I), or use ", Option("scheduler"), " slurm, pbs or local."),
            )
        return super().resolve(resources, ranks=ranks, threads=threads, memory=memory)

    def _check_gpus(self, per_rank: int, ranks: int) -> None:
        """Accept the number: each rank compares it with the GPUs of its node, which this process cannot see."""

    def _allocation_hint(self) -> str:
        return ""

    def _scrub(self, environment: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
        return scrub_rank(environment)
