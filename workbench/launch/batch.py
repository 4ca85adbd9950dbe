"""What launchers of batch schedulers share: one command hands a script over, and what is refused is taken back."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from workbench.errors import LaunchError, SchedulerTimeout
from workbench.launch import command
from workbench.launch.interface import JobSpec, Launcher, NodeSettings
from workbench.launch.jobqueue import site
from workbench.launch.options import Resources
from workbench.launch.script import write_script


@dataclass(frozen=True)
class Submission:
    """A command that hands a script over."""

    argv: tuple[str, ...]
    """Its words."""
    environment: dict[str, str]
    """Its variables, which the job inherits."""
    removed: Sequence[str]
    """Names of variables that were left out of them."""
    directory: Path
    """Its working directory."""


class BatchLauncher(Launcher):
    """Submits scripts to a scheduler whose jobs wait in a queue."""

    def node_settings(self, resources: Resources) -> NodeSettings:
        """Return what the site's settings say of the nodes."""
        its = site(self.name, resources.preset)
        return NodeSettings(its.interface, its.local_directory)

    def submit(self, spec: JobSpec) -> str:
        """Write the script, hand it over and return the job's id; what is refused is taken back."""
        text = self.script(spec)
        how = self.submission(spec, text)
        write_script(spec, text, how.removed)
        try:
            answer = command.submit(how.argv, spec.receipt, environment=how.environment, directory=how.directory)
        except SchedulerTimeout:
            self._withdraw(spec)
            raise
        job = self.receipt(answer.out)
        if answer.code == 0 and job is None:
            # Something between the command and its output has swallowed the id, or the disk is full.
            job = self.find(spec.identity, spec.name)
        if answer.code == 0 and job is not None:
            return job
        self._withdraw(spec)
        if answer.code and not self.may_have_been_taken(answer):
            # Without it nobody looks for a job that never was.
            spec.receipt.unlink(missing_ok=True)
        raise self.refusal(answer, spec)

    def _withdraw(self, spec: JobSpec) -> None:
        # Taken after all, although it was said otherwise or too late.
        with suppress(OSError, LaunchError):
            if job := self.receipt(spec.receipt.read_text(encoding="utf-8", errors="replace")):
                self.cancel(job)

    @abc.abstractmethod
    def submission(self, spec: JobSpec, text: str) -> Submission:
        """Return the command that hands over the script with this text, once it is in its file."""

    def may_have_been_taken(self, answer: command.Answer) -> bool:
        """Tell whether the job may have been taken although the command says otherwise."""
        return False

    @abc.abstractmethod
    def refusal(self, answer: command.Answer, spec: JobSpec) -> LaunchError:
        """Return the error that says in one sentence why a job was not taken."""
