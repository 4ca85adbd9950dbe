"""Base of the launchers for batch schedulers: one command submits a script, and a failed submission is withdrawn."""

from __future__ import annotations

import abc
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from workbench.errors import LaunchError, SchedulerTimeout
from workbench.host.files import opener
from workbench.launch import command
from workbench.launch.interface import JobSpec, Launcher


def after_prologue(shebang: str, prologue: Sequence[str], lines: Sequence[str]) -> list[str]:
    """Return the prologue of a site followed by lines for ``sh``, to which a C shell passes control."""
    if not is_csh(shebang):
        return [*prologue, *lines]
    # The script of `sh` is its standard input, which the command must not read.
    # A C shell compares the last line with the word as written, with its quotes.
    end = "'workbench-end-of-script'"
    return [*prologue, f"exec /bin/sh << {end}", *lines[:-1], f"{lines[-1]} </dev/null", end]


def is_csh(shebang: str) -> bool:
    """Return whether the first line of a script names a C shell, which cannot read the lines of `sh`."""
    return re.search(r"\bt?csh\b", shebang) is not None


def write_script(spec: JobSpec, text: str, removed: Sequence[str]) -> None:
    """Write a job's script, and into the job's log the names of the variables that were removed.

    Raises
    ------
    LaunchError
        If script or log cannot be written.
    """
    note = "left out of the environment, since they belong to an enclosing job or rank, or contradict the job:"
    try:
        with open(os.open(spec.script, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o700), "w", encoding="utf-8") as file:
            file.write(text)
        # In any case the file is made with private permissions before the job writes into it.
        with open(spec.log, "a", encoding="utf-8", opener=opener) as log:
            if removed:
                log.write(f"{note} {', '.join(removed)}\n")
    except OSError as error:
        raise LaunchError(
            f"cannot write {error.filename or spec.script}: {error.strerror}.",
            hint="Check the permissions, the free space of the disk and your quota.",
        ) from error


@dataclass(frozen=True)
class Submission:
    """A command that submits a script."""

    argv: tuple[str, ...]
    """The command line."""
    environment: dict[str, str]
    """Variables of the command, which the job inherits."""
    removed: Sequence[str]
    """Names of variables that were removed from `environment`."""
    directory: Path
    """Working directory of the command."""


class BatchLauncher(Launcher):
    """Submits scripts to a scheduler whose jobs wait in a queue."""

    def submit(self, spec: JobSpec) -> str:
        """Write the script, submit it and return the job's id; a failed submission is withdrawn."""
        text = self.script(spec)
        submission = self.submission(spec, text)
        write_script(spec, text, submission.removed)
        try:
            answer = command.submit(
                submission.argv, spec.receipt, environment=submission.environment, directory=submission.directory
            )
        except SchedulerTimeout:
            self._withdraw(spec)
            raise
        job = self.receipt(answer.out)
        if answer.code == 0 and job is None:
            # A wrapper of the command did not print the id, or the disk is full.
            job = self.find(spec.identity, spec.name)
        if answer.code == 0 and job is not None:
            return job
        self._withdraw(spec)
        if answer.code and not self.may_have_been_taken(answer):
            # Without a receipt no process searches for a job that does not exist.
            spec.receipt.unlink(missing_ok=True)
        raise self.refusal(answer, spec)

    def _withdraw(self, spec: JobSpec) -> None:
        # The scheduler may have accepted the job although the command reported an error or timed out.
        with suppress(OSError, LaunchError):
            if job := self.receipt(spec.receipt.read_text(encoding="utf-8", errors="replace")):
                self.cancel(job)

    @abc.abstractmethod
    def submission(self, spec: JobSpec, text: str) -> Submission:
        """Return the command that submits the script with this text, after the script was written to its file."""

    def may_have_been_taken(self, answer: command.Answer) -> bool:
        """Return whether the scheduler may have accepted the job although the command failed."""
        return False

    @abc.abstractmethod
    def refusal(self, answer: command.Answer, spec: JobSpec) -> LaunchError:
        """Return the error that explains in one sentence why the scheduler rejected a job."""
