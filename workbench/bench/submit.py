"""Cost of handing a cluster's job to Slurm, over a bare ``sbatch`` of the very same script.

Every job is to start in an hour, and is canceled as soon as it is submitted: nothing runs, nothing is left. CPU is
that of the process that submits alone, its children left out, as they are the scheduler's own commands in all arms.
"""

from __future__ import annotations

import argparse
import getpass
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.bench import plotting
from workbench.bench.report import Report, alternate, machine, positive
from workbench.deploy.job_spec import job_spec
from workbench.deploy.start import ClusterStart
from workbench.errors import LaunchError
from workbench.launch import command, mpi_library
from workbench.launch.allocation import scrub
from workbench.launch.launchers import answers, launcher
from workbench.launch.options import ClusterOptions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TARGET = 0.5
"""Most CPU seconds of ours."""
NEW, SAME, BARE = ARMS = ("new process", "same process", "sbatch")
"""What is compared: a start in a terminal, one more in a notebook, and the reference."""
POLL = "poll"
"""What is measured besides: one question for a job's status."""
# Seconds for a new process to submit its job and take it back.
_DEADLINE = 120.0
_LATER = "--begin=now+1hour"

# What `workbench start` loads and does until its job is submitted. Its CPU counts from the start of the interpreter.
_NEW_PROCESS = """
import json, shutil, sys, time
import workbench.cli, workbench.cluster
imports = time.process_time()
from workbench.deploy.start import ClusterStart
from workbench.launch.options import ClusterOptions
job = ClusterStart.of(ClusterOptions(**json.loads(sys.argv[1])))
try:
    job.submit()
    print(json.dumps({"cpu": time.process_time() - imports, "imports": imports, "submitted": time.monotonic()}))
finally:
    job.remove()
    shutil.rmtree(job.folder.logs, ignore_errors=True)
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this bench."""
    parser.add_argument("--pairs", type=positive, default=10, help="measurements of each arm (default: 10)")
    parser.add_argument("--ranks", type=positive, default=4, help="ranks of the job (default: 4)")
    parser.add_argument("--queue", help="partition to submit to (default: the site's)")


def run(options: argparse.Namespace) -> Report:
    """Measure all arms and return the report.

    Raises
    ------
    LaunchError
        If no Slurm is here that answers, or it does not take the job.
    """
    if not answers("slurm"):
        raise LaunchError(
            "bench submit: Slurm must be installed here and answer `sinfo`, since jobs are submitted to it, and "
            "canceled before they start. Run it on a login node of a system with Slurm."
        )
    asked = {
        "ranks": options.ranks,
        "queue": options.queue,
        "name": f"bench-submit-{os.getpid()}",
        "scheduler": "slurm",
        "extra": [_LATER],
    }
    facts = machine(mpi_library.find()) | {
        "scheduler": command.ask(["sbatch", "--version"]).describe,
        "ranks": options.ranks,
    }
    measure = dict(zip(ARMS, (_new_process, _same_process, _sbatch), strict=True))
    rows = []
    for pair, arm in alternate(ARMS, options.pairs):
        measured = measure[arm](asked)
        if pair:
            rows += [{"pair": pair, **row} for row in measured]
    return Report("submit", facts, rows, summarize(rows))


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return medians over all pairs: what ours takes over the reference in CPU and wall seconds, and what a poll does.

    Returns
    -------
    summary : dict
        ``cpu``: own CPU of the first job that a process submits, over the reference; ``imports_cpu``: what that process
        has taken until then, most of it for Dask; ``wall``: the time of both over the reference; ``warm_...``: the
        same of a process that has submitted before.
    """

    def of(arm: str, key: str) -> list[float]:
        return [row[key] for row in sorted(rows, key=lambda row: int(row["pair"])) if row["arm"] == arm]

    def over(arm: str, key: str) -> float:
        return statistics.median(ours - bare for ours, bare in zip(of(arm, key), of(BARE, key), strict=True))

    return {
        "cpu": over(NEW, "cpu"),
        "target": TARGET,
        "imports_cpu": statistics.median(of(NEW, "imports_cpu")),
        "wall": over(NEW, "seconds"),
        "warm_cpu": over(SAME, "cpu"),
        "warm_wall": over(SAME, "seconds"),
        "sbatch_wall": statistics.median(of(BARE, "seconds")),
        "poll_cpu": statistics.median(of(POLL, "cpu")),
        "poll_wall": statistics.median(of(POLL, "seconds")),
    }


def _new_process(asked: dict[str, Any]) -> list[dict[str, Any]]:
    begin = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _NEW_PROCESS, json.dumps(asked)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        output, errors = process.communicate(timeout=_DEADLINE)
    except BaseException:
        # It takes its job back before it ends.
        process.send_signal(signal.SIGINT)
        process.communicate()
        raise
    if process.returncode:
        last = (errors.strip().splitlines() or ["no message"])[-1]
        raise LaunchError(f"bench submit: a process that submits a job has ended with {process.returncode}: {last}")
    values = json.loads(output)
    return [_row(NEW, values["submitted"] - begin, values["cpu"], values["imports"])]


def _same_process(asked: dict[str, Any]) -> list[dict[str, Any]]:
    started = []

    def submit() -> None:
        started.append(ClusterStart.of(ClusterOptions(**asked)))
        started[0].submit()

    try:
        submitted = _timed(SAME, submit)
        job = started[0].job_id()
        return [submitted, _timed(POLL, lambda: launcher("slurm").statuses([str(job)]))]
    finally:
        for starter in started:
            starter.remove()
            shutil.rmtree(starter.folder.logs, ignore_errors=True)


def _sbatch(asked: dict[str, Any]) -> list[dict[str, Any]]:
    start = ClusterStart.of(ClusterOptions(**asked))
    spec = job_spec(start.record, start.folder)
    environment, _ = scrub(os.environ)
    with tempfile.TemporaryDirectory(prefix="workbench-bench-") as folder:
        script = Path(folder) / "job.sh"
        script.write_text(launcher("slurm").script(spec), encoding="utf-8")
        line = ["sbatch", "--parsable", str(script)]
        try:
            return [_timed(BARE, lambda: subprocess.run(line, env=environment, capture_output=True, check=True))]
        except subprocess.CalledProcessError as error:
            said = error.stderr.decode(errors="replace").strip()
            raise LaunchError(f"bench submit: sbatch does not take the job: {said}") from error
        finally:
            # By its name: its id is not known if this was interrupted.
            command.ask(["scancel", f"--user={getpass.getuser()}", f"--name={spec.name}"])


def _timed(arm: str, call: Callable[[], object]) -> dict[str, Any]:
    cpu, begin = time.process_time(), time.monotonic()
    call()
    return _row(arm, time.monotonic() - begin, time.process_time() - cpu)


def _row(arm: str, seconds: float, cpu: float, imports: float = 0.0) -> dict[str, Any]:
    return {"arm": arm, "seconds": seconds, "cpu": cpu, "imports_cpu": imports}


def plot(report: Report) -> Figure:
    """Draw every measurement: own CPU in a new process and in one that has submitted before, and wall time."""
    title = f"Submitting a job of {report.machine['ranks']} ranks to Slurm: lower is better"
    figure, panels = plotting.figure(report, title, 1, 2)

    def of(arm: str, key: str) -> list[float]:
        return [row[key] for row in report.rows if row["arm"] == arm]

    cpu, wall = panels
    plotting.strips(cpu, {arm: of(arm, "cpu") for arm in (NEW, SAME)}, "submitted by", "own CPU (s)")
    summary = report.summary
    cpu.set_title(
        f"new: {summary['cpu']:.2f} s (target: < {TARGET:g}), after {summary['imports_cpu']:.2f} s for imports"
    )
    plotting.strips(wall, {arm: of(arm, "seconds") for arm in (SAME, BARE)}, "submitted by", "wall time (s)")
    wall.set_title(f"{summary['warm_wall']:.2f} s over a bare sbatch of the same script")
    return figure
