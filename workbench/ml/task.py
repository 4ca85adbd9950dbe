"""What is to be fitted, and the part of a rank in a fit by MPI.

Ranks load this and what a task names, and so neither scikit-learn nor pandas but where an algorithm needs them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workbench.ml.checks import Checks, make
from workbench.ml.parts import Parts
from workbench.ml.progress import Sender
from workbench.ml.rank_parts import RankParts, serve
from workbench.rank import events

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from workbench.ml.data import Data


@dataclass(frozen=True)
class Task:
    """What is to be fitted, apart from its data."""

    algorithm: Callable[[Parts, Any], Any]
    """Is given the parts and the settings, and returns what it has found."""
    settings: Any
    part: Callable[..., Any]
    """Makes a part of rows, targets, weights and the number of the first row."""
    checks: Checks
    after: Callable[[Any, Data], Any] | None = None
    """Is given what was found and the data where they lay, in the process that waits; returns what the fit returns."""

    def finish(self, found: Any, data: Data) -> Any:
        """Return what the fit returns, of what the algorithm has found."""
        return found if self.after is None else self.after(found, data)


def on_rank(
    comm: Intracomm, task: Task, starts: list[int], fit: str, wanted: bool, *columns: Any
) -> tuple[Any, list[Any]] | None:
    """Take part in a fit; return on rank 0 what was found, and all records if they are wanted."""
    part = make(task.part, task.checks, starts[comm.rank], *columns)
    if comm.rank:
        serve(comm, part)
        return None
    sender = Sender(fit, task.checks.estimator, events.tell)
    parts = RankParts(comm, part, sender)
    found = task.algorithm(parts, task.settings)
    parts.end()
    sender.flush()
    return found, sender.records if wanted else []
