"""Time from nothing to a client with all workers, against ``mpiexec dask-mpi`` of the same MPI.

All arms start as many workers, one for each MPI rank, and end when ``Client.wait_for_workers`` returns. The
reference gets the same variables as our own ``mpiexec``, among them those that let ranks share cores. A third arm is a
cluster whose ranks import by themselves, as with the setting ``workbench.template: false``. Memory is the proportional
share (PSS) of all processes of an arm together, the launcher's included, for each rank.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.bench import world
from workbench.bench.report import Report, alternate, machine, positive
from workbench.errors import LaunchError
from workbench.launch import mpi_library
from workbench.launch.probe import bare_world

if TYPE_CHECKING:
    from distributed import Client

TARGET, AIM = 0.75, 0.6
# Seconds that one start may take, and seconds for the machine to come to rest between two.
_DEADLINE, _SETTLE = 120.0, 5.0
# Share of the machine, in per cent, below which it is at rest.
_IDLE = 10.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this bench."""
    parser.add_argument("--pairs", type=positive, default=5, help="measurements of each arm (default: 5)")
    parser.add_argument("--ranks", type=positive, default=8, help="workers to start (default: 8)")


def run(options: argparse.Namespace) -> Report:
    """Measure both arms and return the report.

    Raises
    ------
    LaunchError
        If dask-mpi is not installed, an arm does not start, or it has another number of workers than asked for.
    """
    if find_spec("dask_mpi") is None:
        raise LaunchError("dask-mpi, the reference, is not installed: pip install 'mpi-workbench[bench]'")
    # What a notebook has loaded before: not a part of either start.
    import distributed  # noqa: F401

    import workbench.cluster  # noqa: F401

    found = mpi_library.find()
    arms = {"workbench": _workbench, "no template": _no_template, "dask-mpi": _dask_mpi}
    rows = []
    for pair, arm in alternate(list(arms), options.pairs):
        _settle()
        begin = time.perf_counter()
        with arms[arm](found, options.ranks) as (client, root):
            client.wait_for_workers(options.ranks, timeout=_DEADLINE)
            seconds = time.perf_counter() - begin
            workers = len(client.scheduler_info(n_workers=-1)["workers"])
            memory = memory_mib(root) / options.ranks
        if workers != options.ranks:
            raise LaunchError(f"{arm} has {workers} workers, {options.ranks} were asked for: nothing to compare.")
        if pair:
            rows.append({"pair": pair, "arm": arm, "seconds": seconds, "workers": workers, "mb_per_rank": memory})
    return Report("startup", machine(found), rows, summarize(rows))


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the median of each arm in seconds and in MB for each rank, and the ratio of ours to the reference."""

    def median(arm: str, what: str) -> float:
        return float(statistics.median(row[what] for row in rows if row["arm"] == arm))

    arms = list(dict.fromkeys(row["arm"] for row in rows))
    seconds = {arm: median(arm, "seconds") for arm in arms}
    figures = {"ratio": seconds["workbench"] / seconds["dask-mpi"], "target": TARGET, "aim": AIM}
    memory = {f"{arm}, MB per rank": median(arm, "mb_per_rank") for arm in arms}
    return figures | {f"{arm}, seconds": seconds[arm] for arm in arms} | memory


@contextmanager
def _workbench(found: mpi_library.MPI, ranks: int, *, template: bool = True) -> Iterator[tuple[Client, int]]:
    import dask
    from distributed import Client

    from workbench import MPICluster

    settings = {"workbench.start-timeout": _DEADLINE, "workbench.template": template}
    with (
        dask.config.set(settings),
        MPICluster(ranks, mpi=found.flavor, quiet=True) as cluster,
        Client(cluster) as client,
    ):
        yield client, cluster.record.process.pid


def _no_template(found: mpi_library.MPI, ranks: int) -> AbstractContextManager[tuple[Client, int]]:
    return _workbench(found, ranks, template=False)


@contextmanager
def _dask_mpi(found: mpi_library.MPI, ranks: int) -> Iterator[tuple[Client, int]]:
    from distributed import Client

    with tempfile.TemporaryDirectory(prefix="workbench-bench-") as folder:
        file, log = Path(folder) / "scheduler.json", Path(folder) / "log"
        with open(log, "wb") as output:
            process = subprocess.Popen(
                reference_command(found, ranks, file),
                env=reference_environment(found, ranks),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        try:
            await_file(file, process, log)
            with Client(scheduler_file=str(file), timeout=_DEADLINE) as client:
                yield client, process.pid
        finally:
            world.end(process)


def reference_command(found: mpi_library.MPI, ranks: int, file: Path) -> list[str]:
    """Return the command line of the reference: one rank more than workers, for its scheduler."""
    dask_mpi = Path(sysconfig.get_path("scripts")) / "dask-mpi"
    options = ["--scheduler-file", str(file), "--worker-class", "distributed.Worker", "--no-dashboard"]
    return [found.mpiexec, "-n", str(ranks + 1), str(dask_mpi), *options]


def reference_environment(found: mpi_library.MPI, ranks: int) -> dict[str, str]:
    """Return the variables of the reference: those of our own ``mpiexec``, and leave to share cores."""
    shared = {}
    if found.flavor == "openmpi":
        shared = {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "OMPI_MCA_rmaps_base_oversubscribe": "1"}
    return bare_world(found, ranks + 1, [])[1] | shared


def await_file(file: Path, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait for a file of a process; raise LaunchError if the process ends or the deadline has passed."""
    deadline = time.monotonic() + _DEADLINE
    while not file.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            last = log.read_text(encoding="utf-8", errors="replace")[-2000:]
            raise LaunchError(f"dask-mpi did not start within {_DEADLINE:.0f} s:\n{last}")
        time.sleep(0.005)


def memory_mib(root: int) -> float:
    """Return the memory of a process and of all that it has started, in MB."""
    import psutil

    total = 0
    for process in (psutil.Process(root), *psutil.Process(root).children(recursive=True)):
        with suppress(OSError):  # it has ended
            lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
            total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1000


def _settle() -> None:
    """Wait until the machine is at rest, for a few seconds at most: other programs may not rest at all."""
    import psutil

    deadline = time.monotonic() + _SETTLE
    while psutil.cpu_percent(interval=0.2) > _IDLE and time.monotonic() < deadline:
        pass
