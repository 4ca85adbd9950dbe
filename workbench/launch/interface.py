"""The promise of a launcher: from a job's description to a job, and back to its state."""

from __future__ import annotations

import abc
import enum
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class JobSpec:
    """One job that holds a head and its world; a value, validated where it is made."""

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


class JobState(enum.Enum):
    """What a scheduler says of a job. `UNKNOWN` is never taken for an end."""

    QUEUED = "queued"
    RUNNING = "running"
    ENDED = "ended"
    UNKNOWN = "unknown"


class Launcher(abc.ABC):
    """Starts jobs.

    Notes
    -----
    A launcher holds no state of its jobs: a job id is all it takes, so that any process of the user can
    ask for and cancel the jobs of another.
    """

    name: str
    """What ``--scheduler`` calls it."""

    @abc.abstractmethod
    def script(self, spec: JobSpec) -> str:
        """Return the text of the job's script: exactly what `submit` hands over."""

    @abc.abstractmethod
    def submit(self, spec: JobSpec) -> str:
        """Start the job and return its id, once the scheduler has taken it.

        Raises
        ------
        LaunchError
            If it was not taken; nothing is left behind.
        """

    @abc.abstractmethod
    def state(self, job: str) -> JobState:
        """Return the state of a job."""

    @abc.abstractmethod
    def cancel(self, job: str) -> None:
        """End a job and all its processes; one that has ended already is no error."""
