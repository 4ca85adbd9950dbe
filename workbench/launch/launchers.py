"""The launchers by name, the default launcher, and the poller of all jobs of this process."""

from __future__ import annotations

import shutil
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from workbench import config
from workbench.errors import InvalidRequest, LaunchError, WorkbenchError
from workbench.hints import Option
from workbench.launch import command
from workbench.launch.allocation import current_allocation
from workbench.launch.interface import UNKNOWN, JobState, JobStatus, Launcher
from workbench.launch.local import HereLauncher, LocalLauncher

CHOICES = config.CHOICES["scheduler"]
"""Values of ``--scheduler``; ``auto``: the first batch scheduler that answers, else this host."""
COMMANDS = {"slurm": "sbatch", "pbs": "qsub"}
"""The command of each batch scheduler, in the order in which ``auto`` tries them."""
TITLES = {"slurm": "Slurm", "pbs": "PBS"}
"""Their names in texts."""


def launcher(scheduler: str) -> Launcher:
    """Return the launcher for a scheduler.

    Raises
    ------
    InvalidRequest
        If the name is not one of a scheduler.
    """
    match scheduler:
        case "local":
            return LocalLauncher()
        case "here":
            return HereLauncher()
        case "slurm":
            from workbench.launch.slurm import SlurmLauncher

            return SlurmLauncher()
        case "pbs":
            from workbench.launch.pbs import PBSLauncher

            return PBSLauncher()
    raise InvalidRequest(option="scheduler", given=scheduler, allowed=CHOICES)


def choose(scheduler: str | None = None) -> str:
    """Return the name of the scheduler for a request.

    Parameters
    ----------
    scheduler
        The request; None: the setting ``workbench.scheduler``. ``auto`` is the first of Slurm and PBS that answers,
        else this host.

    Raises
    ------
    InvalidRequest
        If the name is not one of a scheduler.
    LaunchError
        If this host does not have the scheduler's commands.
    """
    wanted = config.get("scheduler") if scheduler is None else scheduler
    if wanted not in CHOICES:
        raise InvalidRequest(option="scheduler", given=wanted, allowed=CHOICES)
    if wanted == "auto":
        return next((name for name in COMMANDS if answers(name)), "local")
    if wanted in COMMANDS and not installed(wanted):
        raise LaunchError(
            f"scheduler {wanted!r} cannot be used: {absence(wanted)}.",
            option="scheduler",
            given=wanted,
            hint=(
                "Start from a login node of the system, or use ",
                Option("scheduler"),
                " local to use only this host.",
            ),
        )
    return str(wanted)


def silent(scheduler: str | None, chosen: str) -> str:
    """Return a sentence about batch schedulers that `choose` has passed over because they did not answer, or nothing.

    Parameters
    ----------
    scheduler, chosen
        The argument of `choose`, and its result.
    """
    wanted = config.get("scheduler") if scheduler is None else scheduler
    present = [TITLES[name] for name in COMMANDS if installed(name)]
    if wanted != "auto" or chosen != "local" or not present:
        return ""
    return f"{' and '.join(present)} {'does' if len(present) == 1 else 'do'} not answer"


def installed(name: str) -> bool:
    """Return whether this host has the command of a batch scheduler; ``qsub`` may be that of Grid Engine."""
    path = shutil.which(COMMANDS[name])
    return path is not None and not (name == "pbs" and Path(path).with_name("qconf").exists())


def absence(name: str) -> str:
    """Return why a scheduler is not `installed`."""
    if path := shutil.which(COMMANDS[name]):
        return f"{path} belongs to Grid Engine, which is not supported"
    return f"the command {COMMANDS[name]} does not exist on this host"


def answers(name: str) -> bool:
    """Return whether this host has a batch scheduler's commands and the scheduler answers."""
    if not installed(name):
        return False
    if name == "slurm":
        from workbench.launch.slurm import available
    else:
        from workbench.launch.pbs import available
    with command.answering_soon():
        return available()


def usable() -> dict[str, bool]:
    """Return whether a start can use each scheduler: a batch scheduler that answers, and ``here`` inside a job."""
    inside = False
    with suppress(WorkbenchError):
        inside = current_allocation() is not None
    return {"local": True, "here": inside} | {name: answers(name) for name in COMMANDS}


# Seconds between two queries: first interval, growth and longest interval. Schedulers are slow and shared.
_FIRST, _GROWTH, _LONGEST = 0.3, 1.3, 15.0
# Seconds after the last call of `Poller.status` until a job is not polled any more.
_FORGET = 60.0


@dataclass
class _PolledJob:
    status: JobStatus
    interval: float
    due: float
    requested: float


class Poller:
    """Keeps the status of jobs from the last query to their scheduler.

    Notes
    -----
    Thread-safe. A background thread queries all jobs of a scheduler with one command, while `status` is called for
    them. A query without an answer changes no status; the status of a job that has ended is final. A job that its
    scheduler does not know may be a new one, so the scheduler is asked again.
    """

    def __init__(self) -> None:
        self._jobs: dict[tuple[str, str], _PolledJob] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def status(self, scheduler: str, job: str) -> JobStatus:
        """Return the last status of a job; `UNKNOWN` until the first answer of the scheduler."""
        now = time.monotonic()
        with self._changed:
            polled = self._jobs.get((scheduler, job))
            if polled is None:
                polled = self._jobs[scheduler, job] = _PolledJob(UNKNOWN, _FIRST, now, now)
                self._changed.notify()
            polled.requested = now
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="job-poller", daemon=True)
                self._thread.start()
            return polled.status

    def forget(self, scheduler: str, job: str) -> None:
        """Forget the status of a job that has just been submitted: an earlier job may have had the same id."""
        with self._changed:
            self._jobs.pop((scheduler, job), None)

    def _run(self) -> None:
        while True:
            with self._changed:
                now = time.monotonic()
                self._jobs = {key: job for key, job in self._jobs.items() if now - job.requested < _FORGET}
                waiting = {key: job for key, job in self._jobs.items() if not job.status.state.ended}
                if not self._jobs:
                    self._thread = None
                    return
                due = min((job.due for job in waiting.values()), default=now + _FORGET)
                if due > now:
                    self._changed.wait(due - now)
                    continue
            for scheduler in {scheduler for scheduler, _ in waiting}:
                # All waiting jobs of the scheduler: those that are not due yet do not make the query slower.
                self._query(scheduler, [job for other, job in waiting if other == scheduler])

    def _query(self, scheduler: str, jobs: list[str]) -> None:
        statuses = launcher(scheduler).statuses(jobs)
        now = time.monotonic()
        with self._changed:
            for job in jobs:
                polled = self._jobs.get((scheduler, job))
                if polled is None:
                    continue
                status = statuses.get(job, UNKNOWN)
                known = status.finished or status.state is not JobState.UNKNOWN
                if status.reason and polled.status.state is JobState.UNKNOWN:
                    polled.status = status  # the reason why the state is unknown
                if known and status.state is not polled.status.state:
                    polled.interval = _FIRST
                if known and not polled.status.state.ended:
                    polled.status = status
                polled.due = now + polled.interval
                polled.interval = min(_GROWTH * polled.interval, _LONGEST)


poller = Poller()
"""The poller of this process."""
