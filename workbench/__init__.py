"""Start an MPI world that is a Dask cluster from a notebook.

The names below are loaded at their first use, so ``import workbench`` imports neither MPI nor Dask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench import lazy

if TYPE_CHECKING:
    from workbench.checkpoint.client import keep as keep
    from workbench.checkpoint.client import restore as restore
    from workbench.checkpoint.kept import kept as kept
    from workbench.checkpoint.kept import should_stop as should_stop
    from workbench.cluster import MPICluster as MPICluster
    from workbench.collective.api import run_on_ranks as run_on_ranks
    from workbench.collective.api import spmd as spmd
    from workbench.collective.broadcast import broadcast as broadcast
    from workbench.config import __version__ as __version__
    from workbench.metrics.report import report as report
    from workbench.placement.place import blocks as blocks
    from workbench.placement.place import map_blocks as map_blocks
    from workbench.placement.place import place as place
    from workbench.placement.place import reduce as reduce

_HOMES = {
    "workbench.checkpoint.client": "keep restore",
    "workbench.checkpoint.kept": "kept should_stop",
    "workbench.cluster": "MPICluster",
    "workbench.collective.api": "run_on_ranks spmd",
    "workbench.collective.broadcast": "broadcast",
    "workbench.config": "__version__",
    "workbench.metrics.report": "report",
    "workbench.placement.place": "blocks map_blocks place reduce",
}
__getattr__, __dir__, __all__ = lazy.names(__name__, _HOMES)


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    # `jupyter labextension develop` links the bundle of a clone into the environment.
    return [{"src": "labextension", "dest": "mpi-workbench"}]


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext workbench``: register the magics."""
    from workbench.commands.magics import load

    load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """``%unload_ext workbench``: remove the magics; clusters keep running."""
    from workbench.commands.magics import unload

    unload(shell)
