"""Jobs on this host, as processes of their own sessions: they outlive the kernel that started them."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time

from workbench import config
from workbench.errors import LaunchError
from workbench.host import start_time
from workbench.launch.environment import scrub
from workbench.launch.interface import JobSpec, JobState, Launcher
from workbench.words import count

# Seconds for a shell to start the job in the background.
_SUBMIT = 10.0


class LocalLauncher(Launcher):
    """Runs the job's script on this host; a job id is ``PID:START``, so that a reused pid is no job."""

    name = "local"

    def script(self, spec: JobSpec) -> str:
        """Return a shell script that becomes the head."""
        lines = [
            "#!/bin/sh",
            f"# Cluster {spec.name}: {count(spec.ranks, 'rank')} of {count(spec.threads, 'thread')} each on this host",
        ]
        lines += [f"export {name}={shlex.quote(value)}" for name, value in spec.environment]
        lines += [f"exec {shlex.join(spec.command)} >>{shlex.quote(str(spec.log))} 2>&1", ""]
        return "\n".join(lines)

    def submit(self, spec: JobSpec) -> str:
        """Write the script and run it in the current folder, away from the terminal's signals."""
        environment, removed = scrub(os.environ)
        try:
            spec.script.write_text(self.script(spec), encoding="utf-8")
            if removed:
                note = "left out of the environment, since they belong to an enclosing job or rank:"
                with open(spec.log, "a", encoding="utf-8") as log:
                    log.write(f"{note} {', '.join(removed)}\n")
            # The shell's child becomes nobody's: it is no zombie of this process when it ends, and no warning
            # when this process ends first.
            done = subprocess.run(
                ["/bin/sh", "-c", '/bin/sh "$0" </dev/null >/dev/null 2>&1 & echo $!', str(spec.script)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                start_new_session=True,
                timeout=_SUBMIT,
                check=True,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise LaunchError(f"cannot run {spec.script}: {error}. Check the folder's permissions.") from error
        pid = int(done.stdout)
        return f"{pid}:{start_time(pid) or 0:.0f}"

    def state(self, job: str) -> JobState:
        """Return RUNNING or ENDED."""
        pid, _, started = job.partition(":")
        now = start_time(int(pid))
        return JobState.RUNNING if now is not None and f"{now:.0f}" == started else JobState.ENDED

    def cancel(self, job: str) -> None:
        """Ask the head to end, and after the close timeout kill it: its world follows it."""
        deadline = time.monotonic() + config.seconds("close-timeout")
        for number, patience in ((signal.SIGTERM, deadline), (signal.SIGKILL, deadline + 5)):
            if self.state(job) is JobState.ENDED:
                return
            try:
                os.kill(int(job.partition(":")[0]), number)
            except ProcessLookupError:
                return
            while self.state(job) is not JobState.ENDED and time.monotonic() < patience:
                time.sleep(0.02)
