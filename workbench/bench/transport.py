"""One-way times of NumPy arrays between two ranks: mpi:// against tcp://, plain MPI, and both under TLS.

Half of a round trip through ``distributed.comm``, serialization and all, each array sent back by the other rank. The
reference ``raw`` is mpi4py's ``Send`` and ``Recv`` into a buffer that is used again: what no transport can beat. It is
in the memory of the host also with ``--buffers cuda``, where all other arms copy to and from the GPU, too.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.bench import buffers, plotting, world
from workbench.bench.report import Report, machine, positive
from workbench.bench.sizes import KIB, MIB, mean_ratio, sizes
from workbench.comm import certificates
from workbench.launch import mpi_library

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZES = (1, 64, KIB, 8 * KIB, 64 * KIB, 256 * KIB, MIB, 2 * MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB)
"""Of the payload, in bytes."""
# Small is up to, large is from.
_SMALL, _LARGE = 64 * KIB, 2_000_000
# Seconds for all of it.
_DEADLINE = 900.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this bench."""
    parser.add_argument("--sizes", type=sizes, default=list(SIZES), help="sizes (default: 1 B to 256 MiB), as 1,64KiB")
    buffers.add_option(parser.add_argument, buffers.KINDS)
    parser.add_argument("--rounds", type=positive, help="turns of every arm at each size (default: 9 to 60, by size)")


def run(options: argparse.Namespace) -> Report:
    """Measure all arms on a world of two ranks and return the report.

    Raises
    ------
    InvalidRequest
        If the buffers are tensors, and PyTorch is not installed or finds no GPU for them.
    LaunchError
        If the world fails, or an arm delivers something else than was sent.
    """
    found = mpi_library.find()
    buffers.check(options.buffers)
    with tempfile.TemporaryDirectory(prefix="workbench-bench-") as folder:
        certificates.make(Path(folder), "bench")
        given = {"folder": folder, "sizes": options.sizes, "rounds": options.rounds, "buffers": options.buffers}
        result = world.run(found, 2, "workbench.bench.pair", given, _DEADLINE)
    facts = machine(found) | {"buffers": options.buffers}
    kernel = {name: result[name] for name in ("kernel", "kernel_tcp")}
    return Report("transport", facts, result["rows"], summarize(result["rows"]) | kernel | {"kernel_target": 1.05})


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of all sizes together; None where no size belongs to one.

    Returns
    -------
    summary : dict
        ``small``: time of mpi over tcp up to 64 KiB. ``large``: how many times mpi is faster than tcp from 2 MB on.
        ``of_raw``: share of the speed of plain MPI that is reached from 2 MB on. ``small_tls``, ``large_tls``: as
        without, both arms under TLS. ``aligned``: whether all arrays that mpi:// delivered are aligned and writable.
    """

    def small(nbytes: int) -> bool:
        return nbytes <= _SMALL

    def large(nbytes: int) -> bool:
        return nbytes >= _LARGE

    return {
        "small": mean_ratio(rows, "mpi_us", "tcp_us", small),
        "small_target": 1.05,
        "large": mean_ratio(rows, "tcp_us", "mpi_us", large),
        "large_target": 2.0,
        "large_aim": 4.0,
        "of_raw": mean_ratio(rows, "raw_us", "mpi_us", large),
        "small_tls": mean_ratio(rows, "mpi_tls_us", "tls_us", small),
        "large_tls": mean_ratio(rows, "tls_us", "mpi_tls_us", large),
        "aligned": all(row["aligned"] for row in rows),
    }


def plot(report: Report) -> Figure:
    """Draw time against size, and how many times faster than Dask's own each arm is."""
    figure, (left, right) = plotting.figure(report, "One-way time of a NumPy array between two ranks", 1, 2)
    nbytes = [row["nbytes"] for row in report.rows]
    for arm, label, look in (
        ("tcp", "tcp://", plotting.THEIRS),
        ("mpi", "mpi://", plotting.OURS),
        ("tls", "tls://", plotting.THEIRS | plotting.TLS),
        ("mpi_tls", "mpi:// with TLS", plotting.OURS | plotting.TLS),
        ("raw", "mpi4py, reused buffer", plotting.LIMIT),
    ):
        left.plot(nbytes, [row[f"{arm}_us"] / 1e6 for row in report.rows], label=label, **look)
    plotting.size_axis(left, nbytes)
    plotting.time_axis(left)
    left.set(ylabel="median time", title="Time: lower is better")
    for over, arm, since, look in (
        ("tcp", "mpi", 1, plotting.OURS),
        ("tls", "mpi_tls", 1, plotting.OURS | plotting.TLS),
        # For smaller ones it is out of sight, since there the time is all Python's.
        ("tcp", "raw", MIB, plotting.LIMIT),
    ):
        shown = [row for row in report.rows if row["nbytes"] >= since]
        times = [row[f"{over}_us"] / row[f"{arm}_us"] for row in shown]
        right.plot([row["nbytes"] for row in shown], times, **look)
    right.axhline(1, color="black", linewidth=0.8)
    plotting.size_axis(right, nbytes)
    plotting.ratio_axis(right)
    right.set(ylabel="over tcp://, with TLS over tls://", title="Speed-up: higher is better")
    plotting.legend(figure, left)
    return figure
