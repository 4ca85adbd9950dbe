"""Jobs of Slurm: sbatch, squeue, scancel."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache

from workbench import config
from workbench.errors import JobRejected, LaunchError, SchedulerTimeout
from workbench.launch import command
from workbench.launch.allocation import scrub
from workbench.launch.batch import BatchLauncher, Submission
from workbench.launch.interface import UNKNOWN, JobSpec, JobState, JobStatus, scheduler_is_silent
from workbench.launch.jobqueue import Site, site, unread
from workbench.launch.options import Resources
from workbench.launch.slurm_parse import (
    ACCOUNT_FORMAT,
    PARTITION_FORMAT,
    QUEUE_FORMAT,
    SEPARATOR,
    Partition,
    end_reason,
    error_text,
    expectation,
    parse_accounting,
    parse_partitions,
    parse_queue,
    parse_system,
    rejection,
    unknown_job,
    unreachable,
)
from workbench.launch.slurm_script import by_directives, comment, left_out, overriding, resolve, script

# Seconds by which Slurm may send its signal early.
_EARLY = 60
# Prefixes of variables by which a query would omit jobs or ask another cluster, or scancel would ask first.
_FILTERS = ("SQUEUE_", "SACCT_", "SINFO_", "SCANCEL_", "SLURM_CLUSTERS")


class SlurmLauncher(BatchLauncher):
    """Submits the job's script by sbatch; a job id is Slurm's number."""

    name = "slurm"

    def resolve(self, resources: Resources, *, ranks: int, threads: int, memory: int | None) -> Resources:
        """Return the resources of a job: the request, else the user's ``SBATCH_...`` variables, else the site's."""
        return resolve(resources, self._site(resources), os.environ, ranks=ranks, memory=memory)

    def notices(self, resources: Resources, memory: int | None) -> list[str]:
        """Return in sentences which settings of the site have no effect on a job, and why."""
        return [*left_out(self._site(resources), resources, memory), *unread(self.name, resources.preset)]

    def _site(self, resources: Resources) -> Site:
        return by_directives(site(self.name, resources.preset))

    def script(self, spec: JobSpec) -> str:
        """Return a shell script that becomes the head, with directives for sbatch."""
        notice = int(config.seconds("walltime-grace")) + _EARLY
        limit = spec.resources.walltime
        # In a short job the signal could arrive before the head handles it, and end the job. There the head relies on
        # its own clock.
        use_signal = limit is not None and limit > 2 * notice
        return script(spec, self._site(spec.resources), notice if use_signal else None)

    def submission(self, spec: JobSpec, text: str) -> Submission:
        """Return the call of sbatch, without variables that belong to an enclosing job or override the script."""
        environment, removed = _environment(text)
        return Submission(("sbatch", "--parsable", str(spec.script)), environment, removed, spec.directory)

    def refusal(self, answer: command.Answer, spec: JobSpec) -> LaunchError:
        """Return the error that explains in one sentence why Slurm rejects a job."""
        return _refusal(answer.err or answer.out, spec)

    def receipt(self, text: str) -> str | None:
        """Return the job's number; ``--parsable`` prints the number alone, or followed by a cluster's name."""
        for line in text.splitlines():
            number = line.strip().partition(";")[0]
            if number.isascii() and number.isdigit():
                return number
        return None

    def system(self) -> str | None:
        """Return the name of this Slurm and the host of its controller, from one query per process."""
        return system()

    def end_reason(self, log: str, job: str) -> str:
        """Return the reason in the message of Slurm's daemon."""
        return end_reason(log, job)

    def find(self, identity: str, name: str) -> str | None:
        """Return the number of the job that has `identity` in its comment, or None if no such job exists."""
        argv = ["squeue", "--noheader", "--me", f"--format=%i{SEPARATOR}%k"]
        answer = command.ask(argv, environment=_unfiltered())
        if answer.code:
            raise SchedulerTimeout(f"Slurm does not answer ({error_text(answer.err)}).", hint="Try again.")
        jobs = dict(reversed(line.strip().partition(SEPARATOR)[::2]) for line in answer.out.splitlines())
        return jobs.get(comment(identity))

    def may_have_been_taken(self, answer: command.Answer) -> bool:
        """Return whether Slurm may have accepted the job although sbatch failed."""
        return "timed out" in answer.err.lower()

    def statuses(self, jobs: Sequence[str]) -> dict[str, JobStatus]:
        """Return the status of each job from the queue, or from the accounting if the queue does not know the job."""
        valid = [job for job in dict.fromkeys(jobs) if self.receipt(job) == job]
        statuses: dict[str, JobStatus] = {}
        unknown = UNKNOWN
        try:
            if valid:
                statuses |= parse_queue(_queue(valid).out)
                # A query for several jobs omits unknown ones, so only a query for one job shows that it is unknown.
                for job in valid:
                    if job not in statuses:
                        statuses |= _single(job)
        except LaunchError as error:
            unknown = scheduler_is_silent("Slurm", error)
        return {job: statuses.get(job, unknown) for job in jobs}

    def cancel(self, job: str) -> None:
        """Cancel a job with scancel."""
        answer = command.ask(["scancel", job], environment=_unfiltered())
        message = error_text(answer.err)
        if answer.code and not unknown_job(message) and "already complet" not in message.lower():
            if unreachable(message):
                raise SchedulerTimeout(
                    f"Slurm does not answer, so job {job} is not canceled ({message}).", hint="Try again."
                )
            raise LaunchError(f"Slurm does not cancel job {job} ({message}).", hint=f"Run `scancel {job}`.", given=job)

    def test_only(self, spec: JobSpec) -> str:
        """Return when and where the job would start, why Slurm would reject it, or that Slurm does not answer."""
        text = self.script(spec)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".sh") as file:
            file.write(text)
            file.flush()
            try:
                answer = command.ask(["sbatch", "--test-only", file.name], environment=_environment(text)[0])
            except LaunchError as error:
                return str(error)
        output = answer.err or answer.out
        return str(_refusal(output, spec)) if answer.code else expectation(output)


def available() -> bool:
    """Return whether this host has Slurm's commands and Slurm answers."""
    if shutil.which("sbatch") is None:
        return False
    try:
        argv = ["sinfo", "--noheader", "--format=%P"]
        return command.ask(argv, environment=_unfiltered()).code == 0
    except LaunchError:
        return False


def system() -> str | None:
    """Return the name of this host's Slurm and the host of its controller; None if Slurm does not answer."""
    with suppress(LaunchError):
        return _system(shutil.which("scontrol"), os.environ.get("SLURM_CONF"))
    return None


@lru_cache(maxsize=4)
def _system(*_: str | None) -> str:
    answer = command.ask(["scontrol", "show", "config"])
    # A command that a signal has ended, as in a job that is canceled, may have printed a part.
    if answer.code or (name := parse_system(answer.out)) is None:
        raise SchedulerTimeout(f"Slurm does not answer ({error_text(answer.err)}).", hint="Try again.")
    return name


def _environment(text: str) -> tuple[dict[str, str], list[str]]:
    """Return the variables for the submission of a script, and the names of the removed ones."""
    environment, removed = scrub(os.environ)
    conflicts = overriding(text, environment)
    kept = {name: value for name, value in environment.items() if name not in conflicts}
    return kept, sorted((*removed, *conflicts))


def _unfiltered() -> Mapping[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(_FILTERS)}


def _queue(jobs: Sequence[str]) -> command.Answer:
    argv = ["squeue", "--noheader", "--states=all", f"--format={QUEUE_FORMAT}", f"--jobs={','.join(jobs)}"]
    return command.ask(argv, environment=_unfiltered())


def _single(job: str) -> dict[str, JobStatus]:
    answer = _queue([job])
    if unreachable(answer.err):
        raise SchedulerTimeout(error_text(answer.err))
    if not unknown_job(answer.err):
        return parse_queue(answer.out)
    return _accounted(job) or {
        job: JobStatus(JobState.UNKNOWN, "the scheduler no longer knows the job", unknown_to_scheduler=True)
    }


def _accounted(job: str) -> dict[str, JobStatus]:
    """Return the accounting's status of a job; empty without accounting."""
    if shutil.which("sacct") is None:
        return {}
    argv = ["sacct", "--allocations", "--noheader", "--parsable2", f"--delimiter={SEPARATOR}"]
    try:
        return parse_accounting(
            command.ask([*argv, f"--format={ACCOUNT_FORMAT}", f"--jobs={job}"], environment=_unfiltered()).out
        )
    except LaunchError:
        return {}


def _refusal(text: str, spec: JobSpec) -> LaunchError:
    message = error_text(text) or "no message"
    if unreachable(message):
        return SchedulerTimeout(
            f"Slurm does not answer ({message}).", hint="Try again, or ask the site whether it is down."
        )
    return JobRejected(f"Slurm does not accept the job: {rejection(message, spec, _partitions())} ({message}).")


def _partitions() -> dict[str, Partition]:
    try:
        answer = command.ask(["sinfo", "--noheader", f"--format={PARTITION_FORMAT}"], environment=_unfiltered())
    except LaunchError:
        return {}
    return parse_partitions(answer.out)
