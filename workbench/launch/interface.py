"""The promise of a launcher: from a job's description to a job, and back to its state."""

from __future__ import annotations

import abc
import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from workbench.launch.options import Resources


@dataclass(frozen=True)
class JobSpec:
    """One job that holds a head and its world, or one more world; a value, validated where it is made."""

    name: str
    """The cluster's name."""
    ranks: int
    """Size of the MPI world."""
    threads: int
    """Threads of every rank."""
    memory: int | None
    """Memory of a rank in bytes; None: whatever its node gives."""
    command: tuple[str, ...]
    """What the job runs, once, on its first node: the head."""
    log: Path
    """File that takes the job's output."""
    script: Path
    """File that takes the job's script."""
    environment: tuple[tuple[str, str], ...] = ()
    """Variables that the script sets, in order."""
    resources: Resources = field(default_factory=Resources)
    """What the job asks the scheduler for."""
    directory: Path = Path("/")
    """Folder that the job runs in."""

    identity: str = ""
    """Words by which the job can be told from all others, where the scheduler keeps such."""

    @property
    def receipt(self) -> Path:
        """File that takes what the scheduler answers to the submission: the job's id."""
        return self.script.with_suffix(".job")


class JobState(enum.Enum):
    """What a scheduler says of a job. `UNKNOWN` is never taken for an end."""

    QUEUED = "queued"
    RUNNING = "running"
    COMPLETING = "completing"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    UNKNOWN = "unknown"

    @property
    def ended(self) -> bool:
        """Whether the job has ended for good; it never runs again."""
        return self in (JobState.DONE, JobState.FAILED, JobState.CANCELLED, JobState.TIMEOUT)


@dataclass(frozen=True)
class JobStatus:
    """What a scheduler tells of a job."""

    state: JobState
    """Its state."""
    reason: str = ""
    """Why it waits, or how it has ended, in words."""
    start: float | None = None
    """When it started, or is expected to, in seconds since the epoch; None: the scheduler does not say."""
    end: float | None = None
    """When the scheduler will end it, or it has ended, in seconds since the epoch."""
    nodes: str = ""
    """Its nodes, as the scheduler writes them: ``n[1-4]``."""
    unknown_to_scheduler: bool = False
    """Whether the scheduler answers, and does not know the job (any more): it cannot run, how it ended is unknown."""
    hopeless: bool = False
    """Whether it waits, and the scheduler has found that it can never start."""
    label: str = field(default="", compare=False)
    """Comment or name by which the scheduler knows the job: another scheduler gives its number to another job."""

    @property
    def finished(self) -> bool:
        """Whether nothing of the job runs or will run."""
        return self.state.ended or self.unknown_to_scheduler


@dataclass(frozen=True)
class NodeSettings:
    """What a site says of its nodes; None: nothing."""

    interface: str | None = None
    """Network interface that head and ranks bind."""
    local_directory: str | None = None
    """Folder for what ranks write to disk."""


UNKNOWN = JobStatus(JobState.UNKNOWN)
"""What is said of a job while its scheduler does not answer, or what it answers cannot be read."""


def scheduler_is_silent(scheduler: str, error: Exception) -> JobStatus:
    """Return what is known of a job while its scheduler does not answer: nothing, and why."""
    return JobStatus(JobState.UNKNOWN, f"{scheduler} does not answer ({str(error).partition('. ')[0]})")


class Launcher(abc.ABC):
    """Starts jobs.

    Notes
    -----
    A launcher holds no state of its jobs: a job id is all it takes, so that any process of the user can
    ask for and cancel the jobs of another.
    """

    name: str
    """What ``--scheduler`` calls it."""
    batch = True
    """Whether its jobs wait in a queue, have a walltime, and may run on another host than this."""

    @abc.abstractmethod
    def resolve(self, resources: Resources, *, ranks: int, threads: int, memory: int | None) -> Resources:
        """Return the resources that a job asks for: what was given, and for what was not the site's settings.

        Raises
        ------
        InvalidRequest
            If the scheduler cannot express what is asked for.
        """

    @abc.abstractmethod
    def script(self, spec: JobSpec) -> str:
        """Return the text of the job's script: exactly what `submit` hands over."""

    @abc.abstractmethod
    def submit(self, spec: JobSpec) -> str:
        """Start the job and return its id, once the scheduler has taken it.

        Notes
        -----
        The id is in ``spec.receipt`` even if this process is killed meanwhile; see `receipt`.

        Raises
        ------
        LaunchError
            If it was not taken; nothing is left behind.
        """

    @abc.abstractmethod
    def receipt(self, text: str) -> str | None:
        """Return the job id in what the scheduler answered to a submission, or None if it has none."""

    @abc.abstractmethod
    def statuses(self, jobs: Sequence[str]) -> dict[str, JobStatus]:
        """Return the status of each job, asked for at once. Nothing is raised: what cannot be told is `UNKNOWN`."""

    @abc.abstractmethod
    def cancel(self, job: str) -> None:
        """End a job and all its processes, in whatever state it is; one that has ended already is no error.

        Raises
        ------
        LaunchError
            If the scheduler does not take it.
        """

    def node_settings(self, resources: Resources) -> NodeSettings:
        """Return what the site's settings say of the nodes of a job."""
        return NodeSettings()

    def system(self) -> str | None:
        """Return the identity of the system whose scheduler answers here, or None if that is not known.

        Notes
        -----
        It is empty where the ids of jobs name their system.
        """
        return ""

    def find(self, identity: str, name: str) -> str | None:
        """Return the id of a job that was submitted, but whose id was never heard, or None if there is none.

        Parameters
        ----------
        identity, name
            As of its `JobSpec`.

        Raises
        ------
        SchedulerTimeout
            If the scheduler does not answer.
        """
        return None

    def test_only(self, spec: JobSpec) -> str:
        """Return what the scheduler says of the job without taking it; empty where it cannot be asked."""
        return ""
