"""What is to be fitted, and the part of a rank in a fit by MPI.

Ranks load this and what a task names, and so neither scikit-learn nor pandas but where an algorithm needs them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from typing import TYPE_CHECKING, Any

from workbench.metrics import report
from workbench.ml.checks import Checks, make
from workbench.ml.engine.mpi_parts import RankParts, serve
from workbench.ml.engine.parts import Parts
from workbench.ml.engine.progress import Sender

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Task:
    """What is to be fitted, apart from its data."""

    algorithm: Callable[[Parts, Any], Any]
    """Is given the parts and the settings, and returns what it has found."""
    settings: Any
    part: Callable[..., Any]
    """Makes a part of rows, targets, weights and the number of the first row."""
    checks: Checks
    kept: tuple[NDArray[Any], ...] = ()
    """Arrays without rows, like those that each part, a `workbench.ml.engine.kept_arrays.Keeps`, has found for its
    rows. These stay on its rank, and the fit returns what the algorithm does, and placed Dask arrays of them."""

    def __sizeof__(self) -> int:
        # By this a call broadcasts what is large, such as the queries of a search.
        from dask.sizeof import sizeof

        settings = vars(self.settings).values() if is_dataclass(self.settings) else (self.settings,)
        nbytes: int = super().__sizeof__() + sum(map(sizeof, settings))
        return nbytes


def on_rank(
    comm: Intracomm, task: Task, starts: list[int], fit: str, reported: bool, *columns: Any
) -> tuple[Any, list[Any]] | None:
    """Take part in a fit; return on rank 0 what was found, and all records if they are wanted."""
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
