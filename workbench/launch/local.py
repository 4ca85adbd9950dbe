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

_children: dict[int, subprocess.Popen[bytes]] = {}


class LocalLauncher(Launcher):
    """Runs the job's script on this host; a job id is ``PID:START``, so that a reused pid is no job."""

    name = "local"

    def script(self, spec: JobSpec) -> str:
        """Return a shell script that becomes the head."""
        lines = [
            "#!/bin/sh",
            f"# Cluster {spec.name}: {spec.ranks} ranks with {spec.threads} threads each on this host",
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
            process = subprocess.Popen(
                ["/bin/sh", str(spec.script)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise LaunchError(f"cannot run {spec.script}: {error}. Check the folder's permissions.") from error
        _children[process.pid] = process
        return f"{process.pid}:{start_time(process.pid) or 0:.0f}"

    def state(self, job: str) -> JobState:
        """Return RUNNING or ENDED; a job of this very process is reaped on the way."""
        pid, _, started = job.partition(":")
        child = _children.get(int(pid))
        if child is not None and child.poll() is not None:
            del _children[int(pid)]
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
