"""A table of MPI in the manner of OMB-Py, for numpy buffers and for pickled objects.

Point-to-point latency and bandwidth, Bcast, Allreduce, Allgather and Alltoall: what the machine and its MPI give, to
read the other figures by; and what of it is left where numpy buffers go by the communicator that calls and cells are
given.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from workbench.bench import plotting, world
from workbench.bench.report import Report, above_zero, machine, positive
from workbench.bench.sizes import KIB, MIB, sizes
from workbench.errors import InvalidRequest
from workbench.launch import mpi_library

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZES = (8, 64, KIB, 8 * KIB, 64 * KIB, 512 * KIB, 4 * MIB, 16 * MIB)
"""Of a message, in bytes."""
POINT_TO_POINT = ("latency", "bandwidth")
"""Operations that two ranks of the world do."""
# Seconds for all of it, and about how long for one operation at one size.
_DEADLINE, _EACH = 900.0, 0.25


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this bench."""
    parser.add_argument("--ranks", type=positive, default=2, help="size of the world, at least 2 (default: 2)")
    parser.add_argument("--sizes", type=sizes, default=list(SIZES), help="sizes (default: 8 B to 16 MiB), as 8,64KiB")
    parser.add_argument("--seconds", type=above_zero, default=_EACH, help=f"of each figure, about (default: {_EACH})")


def run(options: argparse.Namespace) -> Report:
    """Measure on a world of its own and return the report.

    Raises
    ------
    InvalidRequest
        If there is nobody to talk to.
    LaunchError
        If the world fails, or something else is delivered than was sent.
    """
    if options.ranks < 2:
        raise InvalidRequest(f"--ranks {options.ranks}: messages need two ranks at least")
    found = mpi_library.find()
    given = {"sizes": options.sizes, "seconds": options.seconds}
    rows = world.run(found, options.ranks, "workbench.bench.operations", given, _DEADLINE)
    return Report("collectives", machine(found) | {"ranks": options.ranks}, rows, summarise(rows))


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what our communicator adds to an Allreduce of 8 bytes, in µs, and its time over plain MPI's at 16 MiB.

    Each with its target; None where that size was not measured.
    """
    times = {row["nbytes"]: (row["ours_us"], row["numpy_us"]) for row in rows if row["operation"] == "Allreduce"}
    small, large = times.get(8), times.get(16 * MIB)
    return {
        "allreduce_small_extra_us": small[0] - small[1] if small else None,
        "allreduce_small_extra_target_us": 3.0,
        "allreduce_16mb_ratio": large[0] / large[1] if large else None,
        "allreduce_16mb_target": 1.03,
    }


def plot(report: Report) -> Figure:
    """Draw a panel for each operation, time against size; of the bandwidth, bytes in a second."""
    names = list(dict.fromkeys(row["operation"] for row in report.rows))
    title = f"Operations of MPI on {report.machine['ranks']} ranks"
    figure, axes = plotting.figure(report, title, 2, 3)
    for panel, name in zip(axes, names, strict=True):
        rows = [row for row in report.rows if row["operation"] == name]
        column, unit = ("gb_s", "bandwidth (GB/s)") if name == "bandwidth" else ("us", "time (µs)")
        nbytes = [row["nbytes"] for row in rows]
        for kind, label, look in (
            ("numpy", "numpy buffers", plotting.LIMIT),
            ("ours", "numpy buffers, our communicator", plotting.OURS),
            ("pickle", "pickled objects", plotting.THEIRS),
        ):
            panel.plot(nbytes, [row[f"{kind}_{column}"] for row in rows], label=label, **look)
        plotting.size_axis(panel, nbytes)
        panel.set(yscale="log", title=f"{name} between two ranks" if name in POINT_TO_POINT else name, ylabel=unit)
    axes[0].legend()
    return figure
