"""Jobs of SLURM: sbatch, squeue, scancel."""

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
from workbench.launch.batch import BatchLauncher, Submission
from workbench.launch.environment import scrub
from workbench.launch.interface import UNKNOWN, JobSpec, JobState, JobStatus, scheduler_is_silent
from workbench.launch.jobqueue import site
from workbench.launch.options import Resources
from workbench.launch.slurm_parse import (
    ACCOUNT_FORMAT,
    PARTITION_FORMAT,
    QUEUE_FORMAT,
    SEPARATOR,
    Partition,
    expectation,
    parse_accounting,
    parse_partitions,
    parse_queue,
    parse_system,
    rejection,
    said,
    unknown_job,
    unreachable,
)
from workbench.launch.slurm_resources import resolve
from workbench.launch.slurm_script import comment, overriding, script

# SLURM sends its signal up to a minute early.
_EARLY = 60
# Seconds after which a scheduler that nobody has asked for by name counts as absent.
_AVAILABLE = 5.0
# Variables by which a command that asks would leave out jobs, or ask back.
_FILTERS = ("SQUEUE_", "SACCT_", "SINFO_", "SCANCEL_")


class SlurmLauncher(BatchLauncher):
    """Submits the job's script by sbatch; a job id is SLURM's number."""

    name = "slurm"

    def resolve(self, resources: Resources, *, ranks: int, threads: int, memory: int | None) -> Resources:
        """Return what the job asks for: what was given, else the user's ``SBATCH_...`` variables, else the site's."""
        return resolve(resources, site(self.name, resources.preset), os.environ, ranks=ranks, memory=memory)

    def script(self, spec: JobSpec) -> str:
        """Return a shell script that becomes the head, with directives for sbatch."""
        notice = int(config.seconds("walltime-grace")) + _EARLY
        limit = spec.resources.walltime
        # In a short job the signal would come before there is a head, and end it: there it goes by its own clock.
        timely = limit is not None and limit > 2 * notice
        return script(spec, site(self.name, spec.resources.preset), notice if timely else None)

    def submission(self, spec: JobSpec, text: str) -> Submission:
        """Return the line with sbatch, without variables that belong to an enclosing job or contradict the script."""
        environment, removed = _environment(text)
        return Submission(("sbatch", "--parsable", str(spec.script)), environment, removed, spec.directory)

    def refusal(self, answer: command.Answer, spec: JobSpec) -> LaunchError:
        """Return the error that says in one sentence why SLURM does not take a job."""
        return _refusal(answer.err or answer.out, spec)

    def receipt(self, text: str) -> str | None:
        """Return the job's number; ``--parsable`` writes it alone, or with a cluster's name behind it."""
        for line in text.splitlines():
            number = line.strip().partition(";")[0]
            if number.isascii() and number.isdigit():
                return number
        return None

    def system(self) -> str | None:
        """Return the name of this SLURM and the host of its controller, asked for once."""
        return system()

    def find(self, identity: str, name: str) -> str | None:
        """Return the number of the job that carries `identity` in its comment, or None if there is none."""
        line = ["squeue", "--noheader", "--me", f"--format=%i{SEPARATOR}%k"]
        answer = command.ask(line, environment=_unfiltered())
        if answer.code:
            raise SchedulerTimeout(f"SLURM does not answer ({said(answer.err)}).", hint="Try again.")
        jobs = dict(reversed(line.strip().partition(SEPARATOR)[::2]) for line in answer.out.splitlines())
        return jobs.get(comment(identity))

    def may_have_been_taken(self, answer: command.Answer) -> bool:
        """Tell whether the job may have been taken although sbatch says otherwise."""
        return "timed out" in answer.err.lower()

    def statuses(self, jobs: Sequence[str]) -> dict[str, JobStatus]:
        """Return the status of each job: what the queue says, and of those it has forgotten the accounting."""
        wanted = [job for job in dict.fromkeys(jobs) if self.receipt(job) == job]
        found: dict[str, JobStatus] = {}
        unknown = UNKNOWN
        try:
            if wanted:
                found |= parse_queue(_queue(wanted).out)
                # Of several it leaves out those that it does not know: only asked for one its answer is certain.
                for job in wanted:
                    if job not in found:
                        found |= _alone(job)
        except LaunchError as error:
            unknown = scheduler_is_silent("SLURM", error)
        return {job: found.get(job, unknown) for job in jobs}

    def cancel(self, job: str) -> None:
        """Cancel a job by scancel."""
        answer = command.ask(["scancel", job], environment=_unfiltered())
        words = said(answer.err)
        if answer.code and not unknown_job(words) and "already complet" not in words.lower():
            if unreachable(words):
                raise SchedulerTimeout(
                    f"SLURM does not answer, job {job} is not cancelled ({words}).", hint="Try again."
                )
            raise LaunchError(f"SLURM does not cancel job {job} ({words}).", hint=f"Try `scancel {job}` yourself.")

    def test_only(self, spec: JobSpec) -> str:
        """Return when and where the job would start, why SLURM would not take it, or that it does not answer."""
        text = self.script(spec)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".sh") as file:
            file.write(text)
            file.flush()
            try:
                answer = command.ask(["sbatch", "--test-only", file.name], environment=_environment(text)[0])
            except LaunchError as error:
                return str(error)
        words = answer.err or answer.out
        return str(_refusal(words, spec)) if answer.code else expectation(words)


def available() -> bool:
    """Tell whether SLURM is here and answers."""
    if shutil.which("sbatch") is None:
        return False
    try:
        line = ["sinfo", "--noheader", "--format=%P"]
        return command.ask(line, environment=_unfiltered(), within=_AVAILABLE).code == 0
    except LaunchError:
        return False


def system() -> str | None:
    """Return the name of the SLURM that answers here and the host of its controller; None if it does not answer."""
    with suppress(LaunchError):
        return _system(shutil.which("scontrol"), os.environ.get("SLURM_CONF"))
    return None


@lru_cache(maxsize=4)
def _system(*_: str | None) -> str:
    answer = command.ask(["scontrol", "show", "config"])
    if (found := parse_system(answer.out)) is None:
        raise SchedulerTimeout(f"SLURM does not answer ({said(answer.err)}).", hint="Try again.")
    return found


def _environment(text: str) -> tuple[dict[str, str], list[str]]:
    """Return the variables to submit a script with, and the names of those left out."""
    environment, removed = scrub(os.environ)
    contradicting = overriding(text, environment)
    kept = {name: value for name, value in environment.items() if name not in contradicting}
    return kept, sorted((*removed, *contradicting))


def _unfiltered() -> Mapping[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(_FILTERS)}


def _queue(jobs: Sequence[str]) -> command.Answer:
    line = ["squeue", "--noheader", "--states=all", f"--format={QUEUE_FORMAT}", f"--jobs={','.join(jobs)}"]
    return command.ask(line, environment=_unfiltered())


def _alone(job: str) -> dict[str, JobStatus]:
    answer = _queue([job])
    if unreachable(answer.err):
        raise SchedulerTimeout(said(answer.err))
    if not unknown_job(answer.err):
        return parse_queue(answer.out)
    return _accounted(job) or {
        job: JobStatus(JobState.UNKNOWN, "the scheduler does not know it any more", unknown_to_scheduler=True)
    }


def _accounted(job: str) -> dict[str, JobStatus]:
    """Return how a job ended that the queue has forgotten, empty where nobody keeps account."""
    if shutil.which("sacct") is None:
        return {}
    line = ["sacct", "--allocations", "--noheader", "--parsable2", f"--delimiter={SEPARATOR}"]
    try:
        return parse_accounting(
            command.ask([*line, f"--format={ACCOUNT_FORMAT}", f"--jobs={job}"], environment=_unfiltered()).out
        )
    except LaunchError:
        return {}


def _refusal(text: str, spec: JobSpec) -> LaunchError:
    words = said(text) or "without a word"
    if unreachable(words):
        return SchedulerTimeout(
            f"SLURM does not answer ({words}).", hint="Try again, or ask the site whether it is down."
        )
    return JobRejected(f"SLURM does not take the job: {rejection(words, spec, _partitions())} ({words}).")


def _partitions() -> dict[str, Partition]:
    try:
        answer = command.ask(["sinfo", "--noheader", f"--format={PARTITION_FORMAT}"], environment=_unfiltered())
    except LaunchError:
        return {}
    return parse_partitions(answer.out)
