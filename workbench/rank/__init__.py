"""The process of a rank: rank i of a world is Dask worker i.

Doors: `world`.

On a rank, `current` returns its communicators and its place in the world::

    def hello():
        import workbench.rank

        return workbench.rank.current().rank
"""

from __future__ import annotations

from workbench.mpi.context import current, is_rank

__all__ = ["current", "is_rank"]
