"""What one MPI process of a world runs: rank i is Dask worker i.

On a rank, `current` gives its communicators and its place in the world::

    def hello():
        import workbench.rank

        return workbench.rank.current().rank
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workbench.rank.world import RankContext

# At most one: the context of this process.
_contexts: list[RankContext] = []


def is_rank() -> bool:
    """Tell whether this process is a rank."""
    return bool(_contexts)


def current() -> RankContext:
    """Return the context of the rank that this code runs on.

    Raises
    ------
    RuntimeError
        Anywhere else, as in the notebook.
    """
    if not _contexts:
        raise RuntimeError("this process is not a rank of a cluster: call it in a task, e.g. by client.run(...)")
    return _contexts[0]


def enter(context: RankContext) -> None:
    """Make this process the rank of `context`; called once, at the start of a rank."""
    _contexts[:] = [context]
