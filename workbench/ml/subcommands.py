"""The subcommand `demo`, which loads the notebook and scikit-learn only when it runs."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from workbench.commands.subcommand import Answer, Argument, Place, Subcommand
from workbench.commands.table import OPTIONS
from workbench.hints import TERMINAL

if TYPE_CHECKING:
    from workbench.ml.demo import DemoResult


def _demo(at: Place, ranks: str | None, mpi: str | None) -> DemoResult:
    from workbench.launch.options import rank_count
    from workbench.ml.demo import run

    given = {} if ranks is None else {"ranks": rank_count(ranks)}
    return run(**given, mpi=mpi or "auto", quiet=at.json)


DEMO = Subcommand(
    "demo",
    "train on the flights data on an MPI world of this machine",
    "run",
    _demo,
    lambda result, _: Answer(result.line(), asdict(result)),
    (Argument("--ranks", "number of MPI ranks; default: 4", "N"), OPTIONS["mpi"]),
    (TERMINAL,),
)
