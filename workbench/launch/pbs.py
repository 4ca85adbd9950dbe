"""Jobs by PBS: OpenPBS and PBS Pro, Torque, and SLURM's emulation of their commands."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from functools import lru_cache

from workbench.errors import LaunchError, SchedulerTimeout
from workbench.launch import pbs_parse, slurm
from workbench.launch.batch import BatchLauncher, Submission
from workbench.launch.command import Answer, ask
from workbench.launch.environment import scrub
from workbench.launch.interface import UNKNOWN, JobSpec, JobState, JobStatus, scheduler_is_silent
from workbench.launch.jobqueue import site
from workbench.launch.options import Resources
from workbench.launch.pbs_errors import refusal
from workbench.launch.pbs_resources import resolve
from workbench.launch.pbs_script import SUBMIT_OPTIONS, Flavour, job_name, script_text

# How to ask for jobs, best way first: not every PBS knows JSON, or keeps those that have ended.
_WAYS = {
    Flavour.PRO: (("-x", "-f", "-F", "json"), ("-x", "-f"), ("-f",)),
    Flavour.TORQUE: (("-f",),),
    Flavour.EMULATION: (("-f",),),
}
# The last of these ways that a `qstat` has answered, which is asked first.
_worked: dict[str | None, tuple[str, ...]] = {}
_OK, _FINISHED, _UNKNOWN_JOB = 0, 35, 153
# Of a job that has ended, or is ending.
_ENDED = (_FINISHED, _UNKNOWN_JOB, 168)
_NODE_DOWN = 222


class PBSLauncher(BatchLauncher):
    """Submits jobs by ``qsub``."""

    name = "pbs"

    def resolve(self, resources: Resources, *, ranks: int, threads: int, memory: int | None) -> Resources:
        """Return what the job asks for: what was given, else the site's settings."""
        return resolve(resources, site(self.name, resources.preset), _flavour(), ranks=ranks)

    def script(self, spec: JobSpec) -> str:
        """Return the text of the job's script."""
        return script_text(spec, site(self.name, spec.resources.preset), _flavour())

    def submission(self, spec: JobSpec, text: str) -> Submission:
        """Return the line with ``qsub``."""
        environment, removed = scrub(os.environ)
        # With it the script's directives would be comments.
        environment.pop("PBS_DPREFIX", None)
        # By its name, in its folder: SLURM's emulation hands the path to a shell as it is.
        return Submission(("qsub", *SUBMIT_OPTIONS, spec.script.name), environment, removed, spec.script.parent)

    def refusal(self, answer: Answer, spec: JobSpec) -> LaunchError:
        """Return the error that says in one sentence why PBS does not take a job."""
        return refusal(answer, spec.resources)

    def receipt(self, text: str) -> str | None:
        """Return the job's id in what ``qsub`` has printed."""
        return pbs_parse.job_id(text)

    def statuses(self, jobs: Sequence[str]) -> dict[str, JobStatus]:
        """Return the status of each job by one ``qstat``, and one more for each that it tells nothing of."""
        told: dict[str, JobStatus] = {}
        wanted = [job for job in dict.fromkeys(jobs) if self.receipt(job) == job]
        unknown = UNKNOWN
        try:
            if wanted:
                told |= _ask(_flavour(), wanted)
            for job in wanted if len(wanted) > 1 else ():
                if pbs_parse.number(job) not in told:
                    told |= _ask(_flavour(), [job])
        except LaunchError as error:
            unknown = scheduler_is_silent("PBS", error)
        return {job: told.get(pbs_parse.number(job), unknown) for job in jobs}

    def system(self) -> str | None:
        """Return nothing, since the ids of jobs name their server; but for those of SLURM's emulation."""
        try:
            return slurm.system() if _flavour() is Flavour.EMULATION else ""
        except LaunchError:
            return None

    def find(self, identity: str, name: str) -> str | None:
        """Return the id of the job that has an identity in its name, or None if there is none."""
        flavour = _flavour()
        if flavour is Flavour.EMULATION:
            return None  # it ends with the command that submits it
        answer = ask(["qselect", "-N", job_name(name, identity, flavour)])
        if answer.code != _OK:
            raise SchedulerTimeout(f"PBS does not answer ({answer.describe}).", hint="Try again.")
        return self.receipt(answer.out)

    def cancel(self, job: str) -> None:
        """End a job by ``qdel``, with force if its node does not answer."""
        answer = ask(["qdel", job])
        if answer.code == _NODE_DOWN:
            answer = ask(["qdel", "-W", "force", job])
        # SLURM's emulation says nothing of a job that has ended, and exits with the number of such jobs.
        silent = answer.code == 1 and not (answer.out.strip() or answer.err.strip())
        if answer.code not in (_OK, *_ENDED) and not silent:
            raise LaunchError(
                f"PBS does not cancel job {job}: {answer.describe}.", hint=f"Try again, or use qdel {job} yourself."
            )


def available() -> bool:
    """Tell whether the commands of a PBS are here and its server answers."""
    if not all(map(shutil.which, ("qsub", "qstat", "qdel"))):
        return False
    try:
        return ask(["qstat", "-Q"]).code == _OK
    except LaunchError:
        return False


def _flavour() -> Flavour:
    """Return which PBS answers here.

    Raises
    ------
    LaunchError
        If there is none, or it is not set up.
    """
    return _flavour_of(shutil.which("qstat"))


@lru_cache(maxsize=4)
def _flavour_of(_: str | None) -> Flavour:
    answer = ask(["qstat", "--version"])
    text = answer.out + answer.err
    if "Unknown option: version" in text:
        return Flavour.EMULATION
    if re.search(r"^version: ", text, re.IGNORECASE | re.MULTILINE):
        return Flavour.TORQUE
    if answer.code != _OK:
        raise SchedulerTimeout(
            f"PBS does not answer: qstat --version says {answer.describe!r}.", hint="Is it set up on this host?"
        )
    return Flavour.PRO


def _ask(flavour: Flavour, jobs: Sequence[str]) -> dict[str, JobStatus]:
    """Return what is told of jobs, by their numbers."""
    gone = JobStatus(JobState.UNKNOWN, unknown_to_scheduler=True)
    program = shutil.which("qstat")
    for options in sorted(_WAYS[flavour], key=lambda way: way != _worked.get(program)):
        answer = ask(["qstat", *options, *jobs])
        told = pbs_parse.statuses(answer.out)
        told |= dict.fromkeys(pbs_parse.lost(answer.err) - told.keys(), gone)
        if flavour is Flavour.EMULATION and len(jobs) == 1 and answer == Answer(_UNKNOWN_JOB, "", ""):
            told[pbs_parse.number(jobs[0])] = gone
        if told:
            _worked[program] = options
            return told
        if "cannot connect" in answer.err:
            raise SchedulerTimeout(Answer(answer.code, "", answer.err).describe)
    return {}
