"""``workbench bench NAME``: measurements against a reference, both arms alternating within one run.

Every bench is a module of this package with ``add_options(parser)`` and ``run(options) -> Report``; one that can be
drawn has ``plot(report) -> Figure`` too.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from importlib import import_module

from workbench.bench import plotting
from workbench.bench.report import Report
from workbench.errors import WorkbenchError, did_you_mean

BENCHES = {
    "startup": "start of a cluster to a ready client, against dask-mpi",
    "transport": "arrays between two ranks over mpi://, against tcp:// and plain MPI",
    "collectives": "messages and collectives of plain MPI, for arrays and for pickled objects",
    "apps": "transpose, merge and SVD on workers with mpi://, against ones with tcp://",
    "broadcast": "a large array to all ranks, against client.scatter",
    "spmd": "SPMD calls: the time of an empty call, and a kernel in a call against bare MPI",
    "idle": "CPU of a cluster that does nothing, with mpi:// against tcp://",
    "overhead": "fits of workbench.ml on both engines, against the same kernels in bare MPI",
    "scaling": "fits of workbench.ml from 1 to 8 ranks, and their memory, against bare MPI",
    "peers": "fits of workbench.ml, against dask-ml, daal4py and Dask's own decomposition",
    "metrics": "what metrics add to MPI operations and fits; head and dashboard with many simulated ranks",
    "training": "training of nets of PyTorch, against gloo, a parameter server of Dask and DataLoader",
    "hybrid": "training in layouts of pipeline stages and replicas: time and memory, against one process",
    "strips": "memory of a net of PyTorch on strips of an image, against one process",
    "device": "fits of workbench.ml on a device of PyTorch, against NumPy",
    "tune": "trials of an Optuna study on groups of ranks, against an ideal schedule",
    "submit": "a job handed to Slurm, against a bare sbatch of the same script",
}
"""What can be measured, by the name of its module."""


def main(argv: Sequence[str]) -> int:
    """Run the bench that the command line names, print its report and return the exit code.

    Parameters
    ----------
    argv
        Words after ``workbench bench``.
    """
    parser = argparse.ArgumentParser(
        prog="workbench bench",
        description="Measure the workbench against a reference.",
        epilog="\n".join(["benches:", *(f"  {name:12}{what}" for name, what in BENCHES.items())]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("bench", metavar="NAME", help="what to measure; NAME --help lists its options")
    parser.add_argument("options", nargs=argparse.REMAINDER, help="options of this bench, --json and --plot")
    chosen = parser.parse_args(argv)
    if chosen.bench not in BENCHES:
        parser.error(f"no such bench {chosen.bench!r}, {did_you_mean(chosen.bench, BENCHES)}")
    # Whoever is told to end has worlds and clusters to end first, as after Ctrl-C.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return _run(chosen.bench, chosen.options)
    except WorkbenchError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        signal.signal(signal.SIGTERM, before)


def options(name: str) -> argparse.ArgumentParser:
    """Return what reads the options of a bench."""
    module = import_module(f"workbench.bench.{name}")
    parser = argparse.ArgumentParser(prog=f"workbench bench {name}", description=BENCHES[name])
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    if hasattr(module, "plot"):
        parser.add_argument("--plot", metavar="FILE.png", type=plotting.file, help="draw the report to a file")
    module.add_options(parser)
    return parser


def _run(name: str, argv: Sequence[str]) -> int:
    module = import_module(f"workbench.bench.{name}")
    wanted = options(name).parse_args(argv)
    picture = getattr(wanted, "plot", None)
    if picture:
        plotting.require()
    report: Report = module.run(wanted)
    if picture:
        module.plot(report).savefig(picture)
    print(report.json() if wanted.json else report.table())
    return 0
