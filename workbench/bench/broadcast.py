"""Time to have a large array on all ranks, by ``workbench.broadcast`` and by ``client.scatter(..., broadcast=True)``.

From the call until the scheduler knows it on every worker, on one cluster with mpi://.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from workbench.bench import plotting
from workbench.bench.report import Report, alternate, machine, positive
from workbench.bench.sizes import MIB, sizes, words
from workbench.errors import WorkbenchError
from workbench.launch import mpi_library

if TYPE_CHECKING:
    import numpy as np
    from distributed import Client
    from matplotlib.figure import Figure

ARMS = ("broadcast", "scatter")
TARGET = 2.0
# Maximum seconds until an array is on all workers, or on none; seconds between two polls.
_DEADLINE, _LOOK = 300.0, 0.002


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this bench."""
    parser.add_argument("--pairs", type=positive, default=7, help="measurements of each arm (default: 7)")
    parser.add_argument("--ranks", type=positive, default=4, help="ranks of the cluster (default: 4)")
    parser.add_argument("--size", type=sizes, default=[256 * MIB], help="size of the array (default: 256MiB)")


def run(options: argparse.Namespace) -> Report:
    """Measure both arms and return the report.

    Raises
    ------
    StartError
        If the cluster does not start.
    WorkbenchError
        If the array does not come to every worker as it was sent.
    """
    import numpy as np
    from distributed import Client

    from workbench import MPICluster

    nbytes = options.size[-1]
    rows = []
    with MPICluster(options.ranks, protocol="mpi", quiet=True) as cluster, Client(cluster) as client:
        # Dask removes the copies of `scatter` that no task needs, every two seconds: also before they are checked.
        client.amm.stop()
        for pair, arm in alternate(ARMS, options.pairs):
            # Another array each time: Dask knows one that it has had by its content.
            array = np.random.default_rng([pair, ARMS.index(arm)]).integers(0, 256, nbytes, np.uint8)
            seconds = _measure(client, arm, array, options.ranks)
            if pair:
                rows.append({"pair": pair, "arm": arm, "nbytes": nbytes, "seconds": seconds})
    return Report("broadcast", machine(mpi_library.find()) | {"ranks": options.ranks}, rows, summarize(rows))


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return how many times faster ours is, and the median of each arm in seconds."""
    medians = {arm: statistics.median(_seconds(rows, arm)) for arm in ARMS}
    return {"speedup": medians["scatter"] / medians["broadcast"], "target": TARGET, **medians}


def _seconds(rows: list[dict[str, Any]], arm: str) -> list[float]:
    return [row["seconds"] for row in rows if row["arm"] == arm]


def _measure(client: Client, arm: str, array: np.ndarray, ranks: int) -> float:
    from workbench import broadcast

    begin = time.perf_counter()
    future = broadcast(client, array) if arm == "broadcast" else client.scatter(array, broadcast=True)
    _until(f"an array on {ranks} workers by {arm}", partial(_is_on, client, future, ranks))
    seconds = time.perf_counter() - begin
    key = future.key
    found = client.run(checksum, key)
    if set(found.values()) != {_sum(array)} or len(found) != ranks:
        raise WorkbenchError(f"{arm}: the array has sum {_sum(array)}, on the workers it is {found}")
    del future
    _until(f"the array of {arm} to be released", lambda: not any(client.run(holds, key).values()))
    return seconds


def _is_on(client: Client, future: Any, ranks: int) -> bool:
    return len(client.who_has(future).get(future.key, ())) == ranks


def checksum(key: str, dask_worker: Any) -> int | None:
    """Return the sum of an array on a worker, None if it is not there."""
    return _sum(dask_worker.data[key]) if key in dask_worker.data else None


def holds(key: str, dask_worker: Any) -> bool:
    """Return whether a worker has an array."""
    return key in dask_worker.data


def _sum(array: np.ndarray) -> int:
    return int(array.sum(dtype="u8"))


def _until(what: str, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _DEADLINE
    while not condition():
        if time.monotonic() > deadline:
            raise WorkbenchError(f"waited {_DEADLINE:.0f} s for {what}; see the logs of the ranks")
        time.sleep(_LOOK)


def plot(report: Report) -> Figure:
    """Draw every measurement of both arms and their medians."""
    size = words(report.rows[0]["nbytes"])
    title = f"{size} from the client to {report.machine['ranks']} ranks: lower is better"
    figure, (panel,) = plotting.figure(report, title, 1, 1)
    labels = {"broadcast": "workbench.broadcast", "scatter": "client.scatter"}
    times = {labels[arm]: _seconds(report.rows, arm) for arm in ARMS}
    plotting.strips(panel, times, "called", "time until it is on every rank (s)")
    panel.set_title(f"{report.summary['speedup']:.1f} times as fast")
    return figure
