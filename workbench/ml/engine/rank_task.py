"""The task of a fit, and the function of a rank in a fit over MPI.

Ranks load this module and the modules of a task, and load scikit-learn and pandas only where an algorithm needs them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from typing import TYPE_CHECKING, Any

from workbench.metrics import report
from workbench.ml.checks import Checks, make
from workbench.ml.engine.mpi_parts import RankParts, serve
from workbench.ml.engine.parts import ConnectedParts
from workbench.ml.engine.progress import Sender

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Task:
    """A fit without its data."""

    algorithm: Callable[[ConnectedParts, Any], Any]
    """Returns the result for the parts and the settings."""
    settings: Any
    part: Callable[..., Any]
    """Returns the part of rows, targets, weights and the number of the first row."""
    checks: Checks
    kept: tuple[NDArray[Any], ...] = ()
    """Empty arrays like those that each part, a `workbench.ml.engine.kept_arrays.Keeps`, keeps on its rank. The fit
    returns the kept arrays as placed Dask arrays, beside the result of the algorithm."""

    def __sizeof__(self) -> int:
        # A call broadcasts arguments above a size, for example the queries of a search.
        from dask.sizeof import sizeof

        settings = vars(self.settings).values() if is_dataclass(self.settings) else (self.settings,)
        nbytes: int = super().__sizeof__() + sum(map(sizeof, settings))
        return nbytes


def on_rank(
    comm: Intracomm, task: Task, starts: list[int], fit: str, reported: bool, *columns: Any
) -> tuple[Any, list[Any]] | None:
    """Take part in a fit; return on rank 0 the result, and all records with `reported`."""
    part = make(task.part, task.checks, starts[comm.rank], *columns)
    if comm.rank:
        serve(comm, part)
        return None
    sender = Sender(fit, task.checks.estimator, report.tell, awaited=reported)
    parts = RankParts(comm, part, sender)
    result = task.algorithm(parts, task.settings)
    if task.kept:
        parts.sum("leave", fit)
    parts.end()
    sender.flush()
    return result, sender.records if reported else []
