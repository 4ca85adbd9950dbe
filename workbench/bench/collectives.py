"""A table of MPI in the manner of OMB-Py, for buffers of a kind and for pickled objects.

Point-to-point latency and bandwidth, Bcast, Allreduce, Allgather and Alltoall: what the machine and its MPI give, to
read the other figures by; and what of it is left where the buffers go by the communicator that calls and cells are
given. With ``--torch`` the same of torch.distributed on that communicator.
"""

from __future__ import annotations

import argparse
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from workbench.bench import buffers, plotting, world
from workbench.bench.report import Report, above_zero, machine, positive
from workbench.bench.sizes import KIB, MIB, mean_ratio, sizes
from workbench.errors import InvalidRequest
from workbench.launch import mpi_library

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZES = (8, 64, KIB, 8 * KIB, 64 * KIB, 512 * KIB, 4 * MIB, 16 * MIB)
"""Of a message, in bytes."""
TORCH_SIZES = (KIB, 16 * KIB, 256 * KIB, MIB, 4 * MIB, 25 * MIB, 100 * MIB)
"""The same for torch.distributed; DDP sends gradients by 25 MiB."""
POINT_TO_POINT = ("latency", "bandwidth")
"""Operations that two ranks of the world do."""
_TORCH_LINES = (
    ("mpi", "plain MPI", plotting.LIMIT),
    ("torch", "torch.distributed", plotting.OURS),
    ("copied", "copies and plain MPI", plotting.THEIRS),
)
# Seconds for all of it, and about how long for one operation at one size.
_DEADLINE, _EACH = 900.0, 0.25


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this bench."""
    parser.add_argument("--ranks", type=positive, default=2, help="size of the world, at least 2 (default: 2)")
    measured = parser.add_mutually_exclusive_group()
    measured.add_argument("--torch", action="store_true", help="measure torch.distributed against plain MPI")
    buffers.add_option(measured.add_argument, buffers.WRITABLE)
    parser.add_argument("--device", default="cpu", help="of the tensors of --torch, as cuda (default: cpu)")
    parser.add_argument("--sizes", type=sizes, help="as 8,64KiB (default: 8 B to 16 MiB; of torch 1 KiB to 100 MiB)")
    parser.add_argument("--seconds", type=above_zero, default=_EACH, help=f"of each figure, about (default: {_EACH})")


def run(options: argparse.Namespace) -> Report:
    """Measure on a separate world and return the report.

    Raises
    ------
    InvalidRequest
        If the world has one rank, or PyTorch is not installed.
    LaunchError
        If the world fails, or something else is delivered than was sent.
    """
    if options.ranks < 2:
        raise InvalidRequest(option="ranks", given=options.ranks, allowed="two ranks at least, for messages")
    if options.device != "cpu" and not options.torch:
        raise InvalidRequest(option="device", given=options.device, allowed="cpu, or pass --torch, too")
    found = mpi_library.find()
    facts = machine(found) | {"ranks": options.ranks}
    buffers.check("torch" if options.torch else options.buffers)
    if options.torch or options.buffers == "torch":
        facts |= {"torch": version("torch")}
    given = {"sizes": options.sizes or (TORCH_SIZES if options.torch else SIZES), "seconds": options.seconds}
    if options.torch:
        facts |= {"device": options.device}
        given |= {"device": options.device}
        rows = world.run(found, options.ranks, "workbench.bench.torch_operations", given, _DEADLINE)
        return Report("collectives", facts, rows, summarize_torch(rows))
    facts |= {"buffers": options.buffers}
    rows = world.run(
        found, options.ranks, "workbench.bench.operations", given | {"buffers": options.buffers}, _DEADLINE
    )
    return Report("collectives", facts, rows, summarize(rows, options.buffers))


def summarize(rows: list[dict[str, Any]], kind: str = "numpy") -> dict[str, Any]:
    """Return what our communicator adds to an Allreduce of 8 bytes, in µs, and its time over plain MPI's at 16 MiB.

    Each with its target; None where that size was not measured.
    """
    times = {row["nbytes"]: (row["ours_us"], row[f"{kind}_us"]) for row in rows if row["operation"] == "Allreduce"}
    small, large = times.get(8), times.get(16 * MIB)
    return {
        "allreduce_small_extra_us": small[0] - small[1] if small else None,
        "allreduce_small_extra_target_us": 3.0,
        "allreduce_16mb_ratio": large[0] / large[1] if large else None,
        "allreduce_16mb_target": 1.03,
    }


def summarize_torch(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what torch.distributed takes beyond plain MPI below 1 MiB, in µs, and its time over that of MPI above.

    Of all operations together the largest and the geometric mean, each with its target; and both of ``all_reduce``
    alone. None where no such size was measured. With tensors on a GPU also the time over that of a program that copies
    them to the host and back, above 1 MiB.
    """
    summary: dict[str, Any] = {}
    for name, chosen in (("torch", rows), ("all_reduce", [row for row in rows if row["operation"] == "all_reduce"])):
        extra = [row["torch_us"] - row["mpi_us"] for row in chosen if row["nbytes"] < MIB]
        summary[f"{name}_small_extra_us"] = max(extra) if extra else None
        summary[f"{name}_large_ratio"] = mean_ratio(chosen, "torch_us", "mpi_us", lambda nbytes: nbytes >= MIB)
        if chosen and "copied_us" in chosen[0]:
            summary[f"{name}_large_of_copied"] = mean_ratio(
                chosen, "torch_us", "copied_us", lambda nbytes: nbytes >= MIB
            )
    if "torch_large_of_copied" in summary:
        # The targets are those of tensors in the memory of the host.
        return summary
    return summary | {"small_extra_target_us": 40.0, "large_target": 1.1}


def plot(report: Report) -> Figure:
    """Draw a panel for each operation, time against size; of the bandwidth, bytes in a second."""
    names = list(dict.fromkeys(row["operation"] for row in report.rows))
    of_torch, buffer = "mpi_us" in report.rows[0], report.machine.get("buffers", "numpy")
    lines = (
        (buffer, f"{buffer} buffers", plotting.LIMIT),
        ("ours", f"{buffer} buffers, our communicator", plotting.OURS),
        ("pickle", "pickled objects", plotting.THEIRS),
    )
    title = f"Operations of {'torch.distributed' if of_torch else 'MPI'} on {report.machine['ranks']} ranks"
    figure, axes = plotting.figure(report, title, 2, 3)
    for panel, name in zip(axes, names, strict=False):
        rows = [row for row in report.rows if row["operation"] == name]
        column, unit = ("gb_s", "bandwidth (GB/s)") if name == "bandwidth" else ("us", "time (µs)")
        nbytes = [row["nbytes"] for row in rows]
        for kind, label, look in _TORCH_LINES if of_torch else lines:
            if f"{kind}_{column}" not in rows[0]:
                continue  # on the CPU nothing is copied
            panel.plot(nbytes, [row[f"{kind}_{column}"] for row in rows], label=label, **look)
        plotting.size_axis(panel, nbytes)
        panel.set(yscale="log", title=f"{name} between two ranks" if name in POINT_TO_POINT else name, ylabel=unit)
    plotting.legend(figure, axes[0])
    for panel in axes[len(names) :]:
        panel.remove()
    return figure
