"""Time to save and to restore placed rows, against plain files that all ranks write and read at the same time.

The plain files have the sizes of the files of the checkpoint, and are on the disk too when their time ends. A restore
is on one rank less than the save, and both arms read what the file system has in memory.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.bench.report import Report, alternate, machine, positive
from workbench.bench.sizes import MIB, sizes
from workbench.errors import WorkbenchError
from workbench.launch import mpi_library

if TYPE_CHECKING:
    from workbench import MPICluster

ARMS = ("checkpoint", "plain")
TARGETS = {"save": 0.9, "restore": 0.7}
_COLUMNS = 1024
# Bytes of a file, as in a checkpoint.
_FILE = 64 * MIB


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this bench."""
    parser.add_argument("--path", default=None, help="folder on the file system to measure (default: a temporary one)")
    parser.add_argument("--pairs", type=positive, default=5, help="measurements of each arm (default: 5)")
    parser.add_argument("--ranks", type=positive, default=4, help="ranks of the cluster (default: 4)")
    parser.add_argument("--size", type=sizes, default=[256 * MIB], help="bytes of each rank (default: 256MiB)")


def run(options: argparse.Namespace) -> Report:
    """Measure both arms and return the report.

    Raises
    ------
    StartError
        If a cluster does not start.
    WorkbenchError
        If a restored array has other values than the saved one.
    """
    from workbench import MPICluster

    folder = Path(tempfile.mkdtemp(prefix="bench-checkpoint-", dir=options.path)).absolute()
    rows: list[dict[str, Any]] = []
    try:
        with MPICluster(options.ranks, quiet=True) as cluster:
            _measure_saves(cluster, folder, options, rows)
        with MPICluster(max(1, options.ranks - 1), quiet=True) as cluster:
            _measure_restores(cluster, folder, options, rows)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    about = {"ranks": options.ranks, "nbytes": options.size[-1] * options.ranks}
    return Report("checkpoint", machine(mpi_library.find()) | about, rows, summarize(rows))


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return for saves and restores the rate of a checkpoint relative to that of plain files, and seconds of both."""
    found: dict[str, Any] = {}
    for operation, target in TARGETS.items():
        median = {
            arm: statistics.median(row["seconds"] for row in rows if (row["operation"], row["arm"]) == (operation, arm))
            for arm in ARMS
        }
        found |= {f"{operation} relative rate": median["plain"] / median["checkpoint"], f"{operation} target": target}
        found |= {f"{operation} {arm} s": seconds for arm, seconds in median.items()}
    cpu = [row["cpu"] for row in rows if (row["operation"], row["arm"]) == ("save", "checkpoint")]
    return found | {"save CPU s per GB": statistics.median(cpu)}


def _measure_saves(cluster: MPICluster, folder: Path, options: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    from workbench import run_on_ranks

    nbytes = options.size[-1] // (8 * _COLUMNS) * 8 * _COLUMNS
    with cluster.get_client() as client:
        X = run_on_ranks(random_rows, nbytes, client=client, result="blocks")
        for pair, arm in alternate(ARMS, options.pairs):
            shutil.rmtree(folder / "plain", ignore_errors=True)
            (folder / "plain").mkdir()
            before = sum(run_on_ranks(cpu_seconds, client=client))
            begin = time.perf_counter()
            if arm == "checkpoint":
                cluster.checkpoint(folder / "saved", X=X, keep=1)
            else:
                run_on_ranks(write_plain, X, str(folder / "plain"), client=client)
            seconds = time.perf_counter() - begin
            cpu = (sum(run_on_ranks(cpu_seconds, client=client)) - before) / (nbytes * options.ranks / 1e9)
            if pair:
                rows.append({"pair": pair, "operation": "save", "arm": arm, "seconds": seconds, "cpu": cpu})
        sums = run_on_ranks(total, X, client=client, result="root")
        (folder / "sum").write_text(repr(sums))
        run_on_ranks(write_plain, X, str(folder / "plain"), client=client)


def _measure_restores(
    cluster: MPICluster, folder: Path, options: argparse.Namespace, rows: list[dict[str, Any]]
) -> None:
    from workbench import restore, run_on_ranks

    with cluster.get_client() as client:
        for pair, arm in alternate(ARMS, options.pairs):
            begin = time.perf_counter()
            if arm == "checkpoint":
                X = restore(folder / "saved", client=client).X
            else:
                run_on_ranks(read_plain, str(folder / "plain"), client=client)
            seconds = time.perf_counter() - begin
            if arm == "checkpoint":
                found, expected = run_on_ranks(total, X, client=client, result="root"), (folder / "sum").read_text()
                if repr(found) != expected:
                    raise WorkbenchError(f"the restored array has the sum {found}, and the saved one {expected}")
                del X
            if pair:
                rows.append({"pair": pair, "operation": "restore", "arm": arm, "seconds": seconds, "cpu": 0.0})


# -- on the ranks ----------------------------------------------------------------------------------------------


def random_rows(comm: Any, nbytes: int) -> Any:
    """Return rows of about `nbytes` bytes; ranks have different numbers of rows, as most tables do."""
    rows = nbytes // (8 * _COLUMNS) + (comm.rank < comm.size // 2)
    return np.random.default_rng(comm.rank).integers(0, 2**60, (rows, _COLUMNS))


def cpu_seconds(_: Any) -> float:
    """Return the CPU time of this process in seconds."""
    return time.process_time()


def total(comm: Any, block: Any) -> int:
    """Return the sum of all elements, modulo 2**64."""
    sums: list[int] = comm.allgather(int(block.sum(dtype="u8")))
    return sum(sums) % 2**64


def write_plain(comm: Any, block: Any, path: str) -> None:
    """Write the block of this rank to files of the size of a chunk; collective."""
    content = memoryview(block).cast("B")
    for number, start in enumerate(range(0, content.nbytes, _FILE)):
        with open(f"{path}/{comm.rank:05}-{number}", "wb", buffering=0) as file:
            rest = content[start : start + _FILE]
            while rest.nbytes:
                rest = rest[file.write(rest) :]
            os.fsync(file.fileno())
    comm.Barrier()


def read_plain(comm: Any, path: str) -> None:
    """Read the plain files, each on one rank, into new memory; collective."""
    files = sorted(Path(path).iterdir())
    contents = [np.fromfile(file, np.uint8) for file in files[comm.rank :: comm.size]]
    comm.Barrier()
    del contents
