"""``workbench bench NAME``: measurements of a cluster against a reference, whose arms alternate in one run.

Each bench is a module with ``add_options(parser)`` and ``run(options) -> Report``. A bench that can be drawn has
``plot(report) -> Figure`` too. The folder ``benchmarks`` of the repository has more of them, for developers.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from workbench.commands.subcommand import Argument, Subcommand
from workbench.errors import WorkbenchError, did_you_mean
from workbench.hints import TERMINAL

if TYPE_CHECKING:
    from workbench.bench.report import Report


class Suite(NamedTuple):
    """Benches that one command runs."""

    command: str
    package: str
    """Package of the modules."""
    benches: dict[str, str]
    """What is measured, by the name of the module."""


BENCHES = {
    "startup": "start of a cluster to a ready client, against dask-mpi",
    "transport": "arrays between two ranks over mpi://, against tcp:// and plain MPI",
    "collectives": "messages and collectives of plain MPI, for arrays and for pickled objects",
    "broadcast": "a large array to all ranks, against client.scatter",
    "checkpoint": "saving and restoring placed rows, against plain files of all ranks",
    "spmd": "SPMD calls: the time of an empty call, and a kernel in a call against bare MPI",
    "scaling": "fits of workbench.ml from 1 to 8 ranks, and their memory, against bare MPI",
    "device": "fits of workbench.ml on a device of PyTorch, against NumPy",
    "submit": "a job handed to Slurm, against a bare sbatch of the same script",
}
"""What can be measured, by the name of its module."""
SUITE = Suite("workbench bench", __name__, BENCHES)


def main(argv: Sequence[str], suite: Suite = SUITE) -> int:
    """Run the bench that the command line names, print its report and return the exit code.

    Parameters
    ----------
    argv
        Words after the command.
    suite
        The benches that the command line may name.
    """
    parser = argparse.ArgumentParser(
        prog=suite.command,
        description="Measure the workbench against a reference.",
        epilog="\n".join(["benches:", *(f"  {name:12}{what}" for name, what in suite.benches.items())]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("bench", metavar="NAME", help="what to measure; NAME --help lists its options")
    parser.add_argument("options", nargs=argparse.REMAINDER, help="options of this bench, --json and --plot")
    chosen = parser.parse_args(argv)
    if chosen.bench not in suite.benches:
        parser.error(f"no such bench {chosen.bench!r}, {did_you_mean(chosen.bench, suite.benches)}")
    # SIGTERM ends worlds and clusters first, as Ctrl-C does.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return _run(chosen.bench, chosen.options, suite)
    except WorkbenchError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        signal.signal(signal.SIGTERM, before)


def options(name: str, suite: Suite = SUITE) -> argparse.ArgumentParser:
    """Return what reads the options of a bench."""
    from workbench.bench import plotting

    module = import_module(f"{suite.package}.{name}")
    parser = argparse.ArgumentParser(prog=f"{suite.command} {name}", description=suite.benches[name])
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    if hasattr(module, "plot"):
        parser.add_argument("--plot", metavar="FILE.png", type=plotting.file, help="draw the report to a file")
    module.add_options(parser)
    return parser


def _run(name: str, argv: Sequence[str], suite: Suite) -> int:
    from workbench.bench import plotting

    module = import_module(f"{suite.package}.{name}")
    wanted = options(name, suite).parse_args(argv)
    picture = getattr(wanted, "plot", None)
    if picture:
        plotting.require()
    report: Report = module.run(wanted)
    if picture:
        module.plot(report).savefig(picture)
    print(report.json() if wanted.json else report.table())
    return 0


SUBCOMMAND = Subcommand(
    "bench",
    "measure against a reference",
    "run",
    main,
    arguments=(Argument("bench", "what to measure", "NAME"),),
    places=(TERMINAL,),
    parses=True,
)
