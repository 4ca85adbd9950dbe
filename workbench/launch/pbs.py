"""Jobs of OpenPBS and PBS Pro, and of Slurm's emulation of their commands."""

from __future__ import annotations

import os
import re
import shutil
import socket
from collections.abc import Sequence
from functools import lru_cache

from workbench.errors import JobRejected, LaunchError, SchedulerTimeout, did_you_mean
from workbench.hints import Option
from workbench.launch import pbs_parse, slurm, slurm_parse
from workbench.launch.allocation import scrub
from workbench.launch.batch import BatchLauncher, Submission
from workbench.launch.command import Answer, ask
from workbench.launch.interface import UNKNOWN, JobSpec, JobState, JobStatus, scheduler_is_silent
from workbench.launch.jobqueue import Site, site, unread
from workbench.launch.options import Resources
from workbench.launch.pbs_script import (
    Flavor,
    by_directives,
    job_name,
    left_out,
    order_directives,
    resolve,
    script_text,
)
from workbench.launch.walltime import clock
from workbench.text import count

# Options of qstat, the best first: not every PBS supports JSON, or keeps jobs that have ended.
_QSTAT_OPTIONS = {
    Flavor.PRO: (("-x", "-f", "-F", "json"), ("-x", "-f"), ("-f",)),
    Flavor.EMULATION: (("-f",),),
}
# The last options that each `qstat` has answered, which are tried first.
_worked: dict[str | None, tuple[str, ...]] = {}
_OK, _FINISHED, _UNKNOWN_JOB = 0, 35, 153
# Exit codes of qdel for a job that has ended or is ending.
_ENDED = (_FINISHED, _UNKNOWN_JOB, 168)
_NODE_DOWN, _UNAUTHORIZED = 222, 159


class PBSLauncher(BatchLauncher):
    """Submits jobs by ``qsub``."""

    name = "pbs"

    def resolve(self, resources: Resources, *, ranks: int, threads: int, memory: int | None) -> Resources:
        """Return the resources of a job: the request, else the site's settings."""
        return resolve(resources, self._site(resources), _flavor(), ranks=ranks)

    def notices(self, resources: Resources, memory: int | None) -> list[str]:
        """Return in sentences which settings of the site have no effect on a job, and why."""
        return [*left_out(self._site(resources)), *unread(self.name, resources.preset)]

    def _site(self, resources: Resources) -> Site:
        return by_directives(site(self.name, resources.preset), os.environ)

    def script(self, spec: JobSpec) -> str:
        """Return the text of the job's script."""
        return script_text(spec, self._site(spec.resources), _flavor())

    def submission(self, spec: JobSpec, text: str) -> Submission:
        """Return the call of ``qsub``."""
        environment, removed = scrub(os.environ)
        # With another prefix the script's directives would be comments.
        environment.pop("PBS_DPREFIX", None)
        # Also on the command line, since Slurm's emulation does not read these directives in the script.
        options = " ".join(order_directives(spec, _flavor())).split()
        # Only the name, in the script's folder: Slurm's emulation passes the path to a shell without quotes.
        return Submission(("qsub", *options, spec.script.name), environment, removed, spec.script.parent)

    def refusal(self, answer: Answer, spec: JobSpec) -> LaunchError:
        """Return the error that explains in one sentence why PBS rejects a job."""
        return refusal(answer, spec.resources)

    def receipt(self, text: str) -> str | None:
        """Return the job's id in the output of ``qsub``."""
        return pbs_parse.job_id(text)

    def statuses(self, jobs: Sequence[str]) -> dict[str, JobStatus]:
        """Return the status of each job from one ``qstat``, and from another one for each job that is missing there."""
        statuses: dict[str, JobStatus] = {}
        valid = [job for job in dict.fromkeys(jobs) if self.receipt(job) == job]
        unknown = UNKNOWN
        try:
            if valid:
                statuses |= _query(_flavor(), valid)
            for job in valid if len(valid) > 1 else ():
                if pbs_parse.number(job) not in statuses:
                    statuses |= _query(_flavor(), [job])
        except LaunchError as error:
            unknown = scheduler_is_silent("PBS", error)
        return {job: statuses.get(pbs_parse.number(job), unknown) for job in jobs}

    def system(self) -> str | None:
        """Return an empty string, since the ids of jobs name their server; for Slurm's emulation that of Slurm."""
        try:
            return slurm.system() if _flavor() is Flavor.EMULATION else ""
        except LaunchError:
            return None

    def end_reason(self, log: str, job: str) -> str:
        """Return the reason in the message of Slurm's daemon, where Slurm has commands of PBS."""
        return slurm_parse.end_reason(log, job)

    def find(self, identity: str, name: str) -> str | None:
        """Return the id of the job that has an identity in its name, or None if no such job exists."""
        if _flavor() is Flavor.EMULATION:
            return None  # no job continues if its qsub is killed
        answer = ask(["qselect", "-N", job_name(name, identity)])
        if answer.code != _OK:
            raise SchedulerTimeout(f"PBS does not answer ({answer.describe}).", hint="Try again.")
        return self.receipt(answer.out)

    def cancel(self, job: str) -> None:
        """End a job with ``qdel``, with force if its node does not answer."""
        answer = ask(["qdel", job])
        if answer.code == _NODE_DOWN:
            answer = ask(["qdel", "-W", "force", job])
        # Slurm's emulation prints nothing for a job that has ended, and exits with the number of such jobs.
        silent = answer.code == 1 and not (answer.out.strip() or answer.err.strip())
        if answer.code == _UNAUTHORIZED:
            raise LaunchError(
                f"PBS does not let you end job {job} from {socket.gethostname()} ({answer.describe}).",
                hint=f"Run qdel {job} on a login node. {_FROM_NODES}",
            )
        if answer.code not in (_OK, *_ENDED) and not silent:
            raise LaunchError(
                f"PBS does not cancel job {job}: {answer.describe}.", hint=f"Try again, or run qdel {job}.", given=job
            )


def available() -> bool:
    """Return whether this host has the commands of a PBS and the server answers."""
    if not all(map(shutil.which, ("qsub", "qstat", "qdel"))):
        return False
    try:
        return ask(["qstat", "-Q"]).code == _OK
    except LaunchError:
        return False


def _flavor() -> Flavor:
    """Return the flavor of this host's PBS.

    Raises
    ------
    LaunchError
        If this host has no PBS or Torque, or if PBS is not set up.
    """
    return _flavor_of(shutil.which("qstat"))


@lru_cache(maxsize=4)
def _flavor_of(path: str | None) -> Flavor:
    answer = ask(["qstat", "--version"])
    text = answer.out + answer.err
    if "Unknown option: version" in text:
        return Flavor.EMULATION
    if re.search(r"^version: ", text, re.IGNORECASE | re.MULTILINE):
        raise LaunchError(
            f"{path} belongs to Torque, which is not supported. Supported: Slurm, OpenPBS and PBS Pro.",
            option="scheduler",
            hint=("Use ", Option("scheduler"), " here in an allocation, or local."),
        )
    if answer.code != _OK:
        raise SchedulerTimeout(
            f"PBS does not answer: qstat --version printed {answer.describe!r}.",
            hint="Check that PBS is set up on this host.",
        )
    return Flavor.PRO


def _query(flavor: Flavor, jobs: Sequence[str]) -> dict[str, JobStatus]:
    """Return the statuses of jobs by their numbers."""
    unknown_job = JobStatus(JobState.UNKNOWN, unknown_to_scheduler=True)
    program = shutil.which("qstat")
    for options in sorted(_QSTAT_OPTIONS[flavor], key=lambda options: options != _worked.get(program)):
        answer = ask(["qstat", *options, *jobs])
        statuses = pbs_parse.statuses(answer.out)
        statuses |= dict.fromkeys(pbs_parse.lost(answer.err) - statuses.keys(), unknown_job)
        if flavor is Flavor.EMULATION and len(jobs) == 1 and answer == Answer(_UNKNOWN_JOB, "", ""):
            statuses[pbs_parse.number(jobs[0])] = unknown_job
        if statuses:
            _worked[program] = options
            return statuses
        if "cannot connect" in answer.err:
            raise SchedulerTimeout(Answer(answer.code, "", answer.err).describe)
    return {}


_NO_SERVER = (160, 162, 255)
_FROM_NODES = "The site can allow it from nodes (flatuid): docs/site-setup.md."
_VALUE = "a directive is not valid. Check --extra and jobqueue.yaml."
_REASONS = {
    159: "you may not use {queue}. Choose another queue with --queue.",
    166: _VALUE,
    173: "{queue} is closed. Choose another queue with --queue.",
    175: "PBS takes no jobs from {host}. Start clusters on a login node; scale submits jobs from a node. "
    + _FROM_NODES,
    197: "you are not a member of a group in --extra.",
}


def refusal(answer: Answer, request: Resources) -> LaunchError:
    """Return the error for a rejected job, with the scheduler's own message in parentheses."""
    message = _message(answer)
    if answer.code in _NO_SERVER or re.search("cannot connect|Unable to contact", f"{answer.err}{message}"):
        return SchedulerTimeout(f"the PBS server does not answer ({message}).", hint="Try again later.")
    return JobRejected(f"PBS does not accept the job: {_reason(answer.code, message, request)} ({message})")


def _message(answer: Answer) -> str:
    """Return the lines with the reason of a rejection, in one line."""
    text = f"{answer.err}\n{answer.out}"
    # Slurm's emulation quotes sbatch.
    quoted = re.findall(r"sbatch: error: .*", text)
    # After an error in an option qsub prints all its options.
    lines = quoted or re.split(r"(?im)^\s*usage:", text)[0].splitlines()
    return slurm_parse.error_text("\n".join(lines)) or answer.describe


def _reason(code: int, message: str, request: Resources) -> str:
    queue = f"queue {request.queue}" if request.queue else "the default queue"
    if code == 170:
        return _unknown_queue(request)
    if code == 187:
        name = re.split(r"[ .]", message)[-1]
        return f"PBS has no {name!r}. Check --constraint, --gpus-per-rank and --extra."
    if code == 188:
        return f"the job requests more than {queue} allows{_limits(request)}."
    if code in (1, 2) and re.search(r"directive error|invalid option|illegal -\w value", message):
        return _VALUE
    if code in _REASONS:
        return _REASONS[code].format(queue=queue, host=socket.gethostname())
    return _emulated(message, request)


def _emulated(message: str, request: Resources) -> str:
    account = f"you may not use account {request.account} here" if "Invalid account" in message else ""
    if sentence := slurm_parse.policy_text(message) or account:
        return f"{sentence}."
    if "partition" in message:
        return _unknown_queue(request)
    if "time limit" in message:
        length = f" of {clock(request.walltime)}" if request.walltime else ""
        return f"the walltime{length} is longer than the queue allows."
    if "node configuration" in message or "More processors" in message or "Node count" in message:
        return (
            f"the job requests {count(request.nodes or 1, 'node')}, but fewer nodes exist, or fewer nodes have as many "
            "processors and as much memory. Pass another --nodes."
        )
    if "feature" in message:
        return f"no node has {request.constraint!r}. Check --constraint."
    return "see the message of PBS"


def _unknown_queue(request: Resources) -> str:
    if request.reservation:
        return f"reservation {request.reservation} does not exist; pbs_rstat lists the reservations."
    try:
        queues = pbs_parse.queues(ask(["qstat", "-Q"]).out)
    except LaunchError:
        queues = []
    return f"queue {request.queue!r} does not exist; {did_you_mean(request.queue, queues)}."


def _limits(request: Resources) -> str:
    if request.queue is None:
        return ""
    try:
        limits = pbs_parse.limits(ask(["qstat", "-Q", "-f", request.queue]).out)
    except LaunchError:
        return ""
    return f" ({', '.join(f'{name} up to {value}' for name, value in limits.items())})" if limits else ""
