"""Start an MPI world that is a Dask cluster from a notebook.

The names below are loaded at their first use, so ``import workbench`` imports neither MPI nor Dask.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workbench.cluster import MPICluster
    from workbench.collective.api import run_on_ranks, spmd
    from workbench.collective.broadcast import broadcast
    from workbench.config import __version__
    from workbench.metrics.report import report
    from workbench.placement.place import blocks, map_blocks, place, reduce

_MODULES = {
    "MPICluster": "workbench.cluster",
    "__version__": "workbench.config",
    "blocks": "workbench.placement.place",
    "broadcast": "workbench.collective.broadcast",
    "map_blocks": "workbench.placement.place",
    "place": "workbench.placement.place",
    "reduce": "workbench.placement.place",
    "report": "workbench.metrics.report",
    "run_on_ranks": "workbench.collective.api",
    "spmd": "workbench.collective.api",
}

__all__ = [
    "MPICluster",
    "__version__",
    "blocks",
    "broadcast",
    "map_blocks",
    "place",
    "reduce",
    "report",
    "run_on_ranks",
    "spmd",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'workbench' has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_MODULES))


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
