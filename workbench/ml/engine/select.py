"""The engine of a fit: from the estimator, the settings, or the kind of the rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from distributed import get_worker

from workbench import config
from workbench.errors import InvalidRequest
from workbench.mpi import context
from workbench.mpi.context import is_in_call

if TYPE_CHECKING:
    from distributed import Client

ENGINES = config.CHOICES["ml.engine"]
"""The values of ``engine``."""

# By client, whose scheduler stays the same: each fit with "auto" needs this, and a request takes some of a short fit.
_serves_calls: WeakKeyDictionary[Client, bool] = WeakKeyDictionary()


def chosen(engine: str, *, distributed: bool) -> str:
    """Return the engine of a fit: ``"local"`` for arrays that are fitted in this process, else another of `ENGINES`.

    Parameters
    ----------
    engine
        One of `ENGINES`; ``"auto"`` is replaced by the setting ``workbench.ml.engine``.
    distributed
        Whether the data are Dask collections.

    Raises
    ------
    InvalidRequest
        If the setting is not valid, the engine is local and the data are Dask collections, or a fit on the ranks would
        wait for the worker that calls it.
    """
    if engine == "auto" and (engine := config.get("ml.engine")) not in ENGINES:
        raise InvalidRequest(option="workbench.ml.engine", given=engine, allowed=ENGINES)
    if not distributed and engine in {"auto", "local"}:
        return "local"
    if engine == "local":
        raise InvalidRequest(
            'engine="local" fits arrays in this process, and X is a Dask collection. Pass X.compute(), or '
            'engine="mpi", "dask" or "auto", which fit on the ranks.',
            option="engine",
        )
    _refuse_on_workers()
    return engine


def serves_calls(client: Client) -> bool:
    """Return whether the cluster runs SPMD calls."""
    if client not in _serves_calls:
        scheduler: Any = client.scheduler
        # A request that only a head knows would make a Dask scheduler log a traceback.
        _serves_calls[client] = client.sync(scheduler.identity, n_workers=0)["type"] == "HeadScheduler"
    return _serves_calls[client]


def _refuse_on_workers() -> None:
    """Raise InvalidRequest where a fit would wait for the worker that calls it."""
    if context.is_in_cell() or is_in_call():
        place = "in a cell or in an SPMD call"
    else:
        try:
            place = f"in a task, on {get_worker().address}"
        except ValueError:
            if not context.is_rank():
                return
            place = "on a rank"
    raise InvalidRequest(
        f"a fit on the ranks that begins {place} would wait for itself. Fit in the notebook, or pass arrays with "
        'engine="auto", which are fitted in this process.',
        option="engine",
    )
