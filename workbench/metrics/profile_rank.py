"""What a rank returns for a profile: what it has counted from its begin to its end, and from where MPI was called."""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from workbench.errors import InvalidRequest
from workbench.metrics.call_stack import is_users
from workbench.metrics.call_stack import place as place_of
from workbench.metrics.rank_sample import RankTotals
from workbench.mpi.context import current

if TYPE_CHECKING:
    from distributed import Worker

    from workbench.metrics.activity import Activity


# Seconds after which a profile is forgotten: whoever has begun it may be gone.
_FORGET_AFTER_S = 24 * 3600.0
# Between an operation of MPI and who calls it: what counts, the communicator, mpi4py, the blocks that these open. What
# hands blocks to Heat is not: MPI is called there for a user's library.
_HEAT = str(Path(__file__).parents[1] / "mpi" / "heat.py")
_OURS = ("cells", "collective", "metrics", "mpi", "placement", "rank")
_BETWEEN = (
    *(f"{Path(__file__).parents[1] / package}/" for package in _OURS),
    "src/mpi4py/",
    str(contextlib.__file__),
    "<",
)


def begin(profile: str, dask_worker: Worker) -> str:
    """Begin a profile on this rank, and return the name of its worker; for `distributed.Client.run`.

    Calls on all ranks and cells that begin from now on are counted by their places in the code of the user, too.

    Parameters
    ----------
    profile
        Tells it from others: several may go on at once.

    Raises
    ------
    InvalidRequest
        If this rank counts nothing, or the worker is no rank.
    """
    activity = _counting(dask_worker)
    activity.meter.locate = locate
    activity.profiles[profile] = activity.counted()
    dask_worker.loop.call_later(_FORGET_AFTER_S, _end, activity, profile)
    return str(dask_worker.name)


def end(profile: str, dask_worker: Worker) -> dict[str, Any] | None:
    """End a profile on this rank, and return what has been counted since its begin; None if it knows of none.

    Returns
    -------
    dict
        ``name`` (of the worker), ``world``, ``rank``, ``host``, ``seconds``, ``busy`` (seconds), ``messages``, and as
        of `RankTotals` ``operations`` and ``sites``.
    """
    activity = _counting(dask_worker)
    now, before = activity.counted(), _end(activity, profile)
    return None if before is None else _told(dask_worker, now, before)


def since_start(dask_worker: Worker) -> dict[str, Any]:
    """Return what has been counted since this rank was started, as `end` does; but for profiles it has no sites."""
    activity = _counting(dask_worker)
    return _told(dask_worker, activity.counted(), RankTotals(activity.began)) | {"sites": {}}


def _counting(worker: Worker) -> Activity:
    activity: Activity | None = getattr(worker, "activity", None)
    if activity is None:
        raise InvalidRequest(
            "a profile is of MPI ranks, and the client is of another cluster: pass one of an MPICluster, as its "
            "get_client() returns it"
        )
    if not activity.enabled:
        raise InvalidRequest(
            "the ranks of this cluster count nothing, for workbench.metrics.enabled is false: set it to true and start "
            "another cluster"
        )
    return activity


def _end(activity: Activity, profile: str) -> RankTotals | None:
    before = activity.profiles.pop(profile, None)
    if not activity.profiles:
        activity.meter.locate = None
    return before


def _told(worker: Worker, now: RankTotals, before: RankTotals) -> dict[str, Any]:
    context = current()
    return {
        "name": str(worker.name),
        "world": context.world,
        "rank": context.rank,
        "host": socket.gethostname(),
        "seconds": now.time - before.time,
        "busy": now.busy - before.busy,
        "messages": now.messages - before.messages,
        "operations": since(now.operations, before.operations),
        "sites": since(now.sites, before.sites),
    }


def since(now: Mapping[Any, Sequence[float]], before: Mapping[Any, Sequence[float]]) -> dict[Any, tuple[float, ...]]:
    """Return what has been added to counts by their keys, without what has not changed."""
    added = {
        key: tuple(max(0, one - other) for one, other in zip(counts, before.get(key, (0,) * len(counts)), strict=True))
        for key, counts in now.items()
    }
    return {key: counts for key, counts in added.items() if any(counts)}


# -- places ----------------------------------------------------------------------------------------------------

# Looked up for each operation of MPI: whose a file is, and how a line of a function in a file is called.
_PASSED, _LIBRARY, _USER = range(3)
_whose: dict[str, int] = {}
_places: dict[tuple[str, str, int], str] = {}


def locate() -> str:
    """Return where an operation of MPI was called that is just ending on this thread.

    Returns
    -------
    str
        The innermost frame of the user's code, as ``"file.py:12"``; where there is none, that of a library.
    """
    # not those of `Counters` and of what has called it
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001  (documented)
    caller: FrameType | None = None
    while frame is not None:
        file = frame.f_code.co_filename
        whose = _whose.get(file)
        if whose is None:
            passed = _PASSED if file.startswith(_BETWEEN) and file != _HEAT else _LIBRARY
            whose = _whose[file] = _USER if is_users(frame) else passed
        if whose == _USER:
            return _named(frame)
        if caller is None and whose == _LIBRARY:
            caller = frame
        frame = frame.f_back
    return _named(caller) if caller is not None else "?"


def _named(frame: FrameType) -> str:
    key = frame.f_code.co_filename, frame.f_code.co_name, frame.f_lineno
    place = _places.get(key)
    if place is None:
        place = _places[key] = place_of(frame)
    return place
