"""Memory of a U-Net on strips of an image, against the same training in one process.

Both arms train in one world, from the same weights on the same image. The ratio is that of two steps of one round: see
`workbench.bench.measuring`.
"""

from __future__ import annotations

import statistics
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from benchmarks import images
from workbench.bench import measuring
from workbench.bench.report import Report, alternate, machine, positive
from workbench.errors import WorkbenchError
from workbench.launch import mpi_library

if TYPE_CHECKING:
    from distributed import Client

STRIPS, ONE = "strips", "one process"
TARGET = 0.30
"""Largest memory of a rank over that of one process, on 4 ranks."""
LIMIT = 0.5
"""Share of the memory of one process within which both arms try to train."""
# How far losses in single precision and gradients in double precision may be apart.
_APART, _EXACT = 1e-5, 1e-10
# The image in double precision is smaller by this factor: every rank has all of it.
_SMALLER = 8
# Seconds for the ranks to be done with one step.
_WITHIN = 600.0


def add_options(parser: ArgumentParser) -> None:
    """Add the options of this bench."""
    parser.add_argument("--ranks", type=positive, default=4, help="of the cluster (default: 4)")
    parser.add_argument("--rounds", type=positive, default=3, help="measurements of each arm (default: 3)")
    parser.add_argument("--image", type=positive, default=1024, help="rows and columns of the image (default: 1024)")
    parser.add_argument("--width", type=positive, default=8, help="channels of the first level (default: 8)")


def run(options: Namespace) -> Report:
    """Measure on a separate cluster, and return the report.

    Raises
    ------
    InvalidRequest
        If PyTorch is not installed.
    StartError
        If the cluster does not start.
    WorkbenchError
        If the arms come to different results.
    """
    from distributed import Client

    from workbench.cluster import MPICluster
    from workbench.torch.context import require_torch

    require_torch()
    with MPICluster(options.ranks, quiet=True) as cluster, Client(cluster) as client:
        bench = Bench(client, options.image, options.width)
        apart = bench.check()
        rows = list(bench.measure(options.rounds))
        summary = summarize(rows) | {"gradients_apart": apart} | bench.limited(rows)
    facts = {"ranks": options.ranks, "torch": version("torch"), "image": options.image, "width": options.width}
    return Report("strips", machine(mpi_library.find()) | facts, rows, summary)


class Bench:
    """The arms on one cluster.

    Parameters
    ----------
    client
        Of the cluster.
    image
        Rows and columns of the image.
    width
        Channels of the first level of the net.
    """

    def __init__(self, client: Client, image: int, width: int) -> None:
        self._client, self._image, self._width = client, image, width

    def check(self) -> float:
        """Return how far the gradients in double precision are from those of one process.

        Raises
        ------
        WorkbenchError
            If they differ.
        """
        apart: float = max(self._on_ranks(images.gradients, self._width, max(1, self._image // _SMALLER)))
        # Not a number is not the same.
        if not apart <= _EXACT:
            raise WorkbenchError(f"the gradients on strips are not those of one process: they differ by {apart}")
        return apart

    def measure(self, rounds: int) -> Iterator[dict[str, Any]]:
        """Yield a row for each step: the memory of the rank that took most, in MiB, and the time in s."""
        expected: float | None = None
        for number, arm in alternate([STRIPS, ONE], rounds):
            answers = self._on_ranks(images.step, self._width, self._image, alone=arm == ONE)
            steps = [step for step in answers if step is not None]
            expected = steps[0].loss if expected is None else expected
            if not all(abs(step.loss - expected) <= _APART for step in steps):
                raise WorkbenchError(f"the losses of {arm} are {[step.loss for step in steps]}, not {expected}")
            if number:
                memory, seconds = max(step.nbytes for step in steps) / 2**20, max(step.seconds for step in steps)
                yield {"arm": arm, "ranks": len(steps), "round": number, "MiB": memory, "s": seconds}

    def limited(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """Return which arm trains with a part of the memory that one process needs."""
        nbytes = round(LIMIT * 2**20 * min(row["MiB"] for row in rows if row["arm"] == ONE))
        found: dict[str, Any] = {"limit_MiB": nbytes / 2**20}
        for arm in (STRIPS, ONE):
            answers = self._on_ranks(images.trains_within, self._width, self._image, nbytes, alone=arm == ONE)
            found[f"{arm.replace(' ', '_')}_within_limit"] = "trains" if all(answers) else "out of memory"
        return found

    def _on_ranks(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        from workbench.collective.api import run_on_ranks

        return run_on_ranks(function, *args, client=self._client, timeout=_WITHIN, **options)


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures.

    Returns
    -------
    summary : dict
        ``memory``: the memory of a rank over that of one process, median of the rounds, with the ends of its interval
        (``_low``, ``_high``) and the target; the medians of memory and time of each arm.
    """
    ours, one = (
        sorted((row for row in rows if row["arm"] == arm), key=lambda row: row["round"]) for arm in (STRIPS, ONE)
    )
    summary: dict[str, Any] = measuring.figures("memory", [row["MiB"] for row in ours], [row["MiB"] for row in one])
    summary["memory_target"] = TARGET
    for name, chosen in (("strips", ours), ("one_process", one)):
        summary |= {f"{name}_{unit}": statistics.median(row[unit] for row in chosen) for unit in ("MiB", "s")}
    return summary
