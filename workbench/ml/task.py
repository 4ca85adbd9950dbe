"""What is to be fitted, and the part of a rank in a fit by MPI.

Ranks load this and what a task names, and so neither scikit-learn nor pandas but where an algorithm needs them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from typing import TYPE_CHECKING, Any

from workbench.ml.checks import Checks, make
from workbench.ml.parts import Parts
from workbench.ml.progress import Sender
from workbench.ml.rank_parts import RankParts, serve
from workbench.rank import events

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
    """Arrays without rows, like those that the method ``kept`` of each part returns at the end, which stay on its rank
    and are what the fit returns. Default: the fit returns what the algorithm does."""

    def __sizeof__(self) -> int:
        # By this a call broadcasts what is large, such as the queries of a search.
        from dask.sizeof import sizeof

        settings = vars(self.settings).values() if is_dataclass(self.settings) else (self.settings,)
        nbytes: int = super().__sizeof__() + sum(map(sizeof, settings))
        return nbytes


def on_rank(
    comm: Intracomm, task: Task, starts: list[int], fit: str, wanted: bool, *columns: Any
) -> tuple[Any, ...] | None:
    """Take part in a fit; return what the part keeps, or on rank 0 what was found and, if wanted, all records."""
    part = make(task.part, task.checks, starts[comm.rank], *columns)
    if comm.rank:
        serve(comm, part)
        return part.kept() if task.kept else None
    sender = Sender(fit, task.checks.estimator, events.tell, awaited=wanted)
    parts = RankParts(comm, part, sender)
    found = task.algorithm(parts, task.settings)
    parts.end()
    sender.flush()
    return part.kept() if task.kept else (found, sender.records if wanted else [])
