"""The interface of a launcher: a job's description, the job's states, and the operations on jobs."""

from __future__ import annotations

import abc
import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from workbench.launch.options import Resources
from workbench.text import clock


@dataclass(frozen=True)
class JobSpec:
    """One job with a head and its world, or with one more world; validated where it is made."""

    name: str
    """The cluster's name."""
    ranks: int
    """Size of the MPI world."""
    threads: int
    """Threads per rank."""
    memory: int | None
    """Memory of a rank in bytes; None: no request, the node's default."""
    command: tuple[str, ...]
    """Command line of the job, which runs once, on the first node: the head."""
    log: Path
    """File for the job's output."""
    script: Path
    """File for the job's script."""
    environment: tuple[tuple[str, str], ...] = ()
    """Variables that the script sets, in order."""
    resources: Resources = field(default_factory=Resources)
    """Resources that the job requests from the scheduler."""
    directory: Path = Path("/")
    """Working directory of the job."""

    after: str = ""
    """Id of the job after whose end this one begins; empty: none."""
    requeue: bool = False
    """Whether the scheduler may start the job again, for example after the failure of a node."""
    identity: str = ""
    """Unique text that the scheduler keeps as the job's comment or in the job's name, where it can."""

    @property
    def receipt(self) -> Path:
        """File for the scheduler's answer to the submission: the job's id."""
        return self.script.with_suffix(".job")


class JobState(enum.Enum):
    """State of a job as its scheduler reports it. `UNKNOWN` never means that the job has ended.

    Notes
    -----
    The starter, the head, all commands and the panel read the state of a job from here.
    """

    QUEUED = "queued"
    HELD = "held"
    """Waits, and is not considered until a person ends the hold."""
    STARTING = "starting"
    """Has its nodes, which are being prepared."""
    RUNNING = "running"
    SUSPENDED = "suspended"
    """Has begun, and its processes are stopped: neither head nor ranks answer."""
    COMPLETING = "completing"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    UNKNOWN = "unknown"

    @property
    def waits(self) -> bool:
        """Whether the job's command has not begun."""
        return self in (JobState.QUEUED, JobState.HELD, JobState.STARTING)

    @property
    def ended(self) -> bool:
        """Whether the job has ended and will never run again."""
        return self in (JobState.DONE, JobState.FAILED, JobState.CANCELLED, JobState.TIMEOUT)


@dataclass(frozen=True)
class JobStatus:
    """Status of a job as its scheduler reports it."""

    state: JobState
    """State of the job."""
    reason: str = ""
    """Why the job waits, or how it ended, as text."""
    start: float | None = None
    """Actual or expected start, in seconds since the epoch; None: unknown."""
    end: float | None = None
    """Actual or scheduled end, in seconds since the epoch; None: unknown."""
    nodes: str = ""
    """The nodes as the scheduler writes them: ``n[1-4]``."""
    unknown_to_scheduler: bool = False
    """Whether the scheduler answers but does not know the job: the job cannot run, and how it ended is unknown.

    A scheduler may not know a new job yet: see `workbench.deploy.job.is_new`.
    """
    hopeless: bool = False
    """Whether the job is queued, and the scheduler reports that the job can never start."""
    label: str = field(default="", compare=False)
    """Comment or name of the job, which identifies it: two schedulers can use the same number."""

    @property
    def finished(self) -> bool:
        """Whether no part of the job runs or will run."""
        return self.state.ended or self.unknown_to_scheduler


UNKNOWN = JobStatus(JobState.UNKNOWN)
"""Status of a job whose scheduler does not answer, or whose answer cannot be read."""


def describe(status: JobStatus) -> str:
    """Describe the status of a job.

    Examples
    --------
    >>> describe(JobStatus(JobState.QUEUED, "waiting for resources"))
    'QUEUED: waiting for resources'
    >>> describe(JobStatus(JobState.HELD, "held by the user"))
    'HELD by the user'
    """
    if status.unknown_to_scheduler:
        return "gone: the scheduler no longer knows the job"
    if status.state is JobState.UNKNOWN and status.reason:
        return status.reason
    name = status.state.name
    text = f"{name}: {status.reason}" if status.reason else name
    if status.reason.startswith(f"{status.state.value} "):
        text = name + status.reason.removeprefix(status.state.value)
    if status.state is JobState.QUEUED and status.start:
        text += f", start expected {clock(status.start)}"
    if status.state is JobState.RUNNING and status.nodes:
        text += f" on {status.nodes}"
    return text


def scheduler_is_silent(scheduler: str, error: Exception) -> JobStatus:
    """Return the status of a job while its scheduler does not answer: unknown, with the reason."""
    return JobStatus(JobState.UNKNOWN, f"{scheduler} does not answer ({str(error).partition('. ')[0]})")


def limit_reached(amount: str, per: str | None, owner: str) -> str:
    """Return why a job waits for a limit of an account, a queue or the like, also a limit per user or group."""
    return f"the limit of {amount}{f' per {per.lower()}' if per else ''} of {owner} is reached"


class Launcher(abc.ABC):
    """Starts jobs.

    Notes
    -----
    A launcher holds no state of jobs and identifies a job by its id alone, so that any process of the user can query
    and cancel the jobs of another.
    """

    name: str
    """Value of ``--scheduler``."""
    batch = True
    """Whether jobs wait in a queue, have a walltime, and may run on another host."""

    @abc.abstractmethod
    def resolve(self, resources: Resources, *, ranks: int, threads: int, memory: int | None) -> Resources:
        """Return the resources that a job requests: those of the user, completed by the site's settings.

        Raises
        ------
        InvalidRequest
            If the scheduler cannot express a resource.
        """

    def notices(self, resources: Resources, memory: int | None) -> list[str]:
        """Return in sentences which settings of the site have no effect on a job with these resources, and why."""
        return []

    @abc.abstractmethod
    def script(self, spec: JobSpec) -> str:
        """Return the text of the script that `submit` submits."""

    @abc.abstractmethod
    def submit(self, spec: JobSpec) -> str:
        """Submit the job and return its id, after the scheduler has accepted the job.

        Notes
        -----
        The id is in ``spec.receipt`` even if this process is killed in the meantime; see `receipt`.

        Raises
        ------
        LaunchError
            If the scheduler rejects the job; nothing is left behind.
        """

    @abc.abstractmethod
    def receipt(self, text: str) -> str | None:
        """Return the job id in the scheduler's answer to a submission, or None if the answer has none."""

    @abc.abstractmethod
    def statuses(self, jobs: Sequence[str]) -> dict[str, JobStatus]:
        """Return the status of each job with one query. No error is raised: a status that is not known is `UNKNOWN`."""

    @abc.abstractmethod
    def cancel(self, job: str) -> None:
        """End a job and all its processes in any state; a job that has already ended is no error.

        Raises
        ------
        LaunchError
            If the scheduler does not cancel the job.
        """

    def system(self) -> str | None:
        """Return the identity of the system whose scheduler answers here, or None if the identity is not known.

        Notes
        -----
        The identity is empty where the ids of jobs name their system.
        """
        return ""

    def end_reason(self, log: str, job: str) -> str:
        """Return why the scheduler has ended a job, from its message in the job's output; empty if it has none."""
        return ""

    def find(self, identity: str, name: str) -> str | None:
        """Return the id of a job whose submission did not return an id, or None if no such job exists.

        Parameters
        ----------
        identity, name
            As in the job's `JobSpec`.

        Raises
        ------
        SchedulerTimeout
            If the scheduler does not answer.
        """
        return None

    def test_only(self, spec: JobSpec) -> str:
        """Return the scheduler's validation of the job without submitting it; empty where there is no such query."""
        return ""
