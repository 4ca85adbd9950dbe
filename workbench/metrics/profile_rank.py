"""The part of a rank in a profile: its counts between begin and end, and the call sites of MPI operations."""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from workbench.call_stack import is_users
from workbench.call_stack import place as place_of
from workbench.errors import InvalidRequest
from workbench.metrics.shared_slots import RankTotals
from workbench.mpi.context import current

if TYPE_CHECKING:
    from distributed import Worker

    from workbench.metrics.activity import Activity

# The client that began a profile may have died; its ranks drop the profile after this time.
_FORGET_AFTER_S = 24 * 3600.0
# Frames of these files stand between an MPI operation and its caller: counters, communicator, mpi4py, context managers.
# The file that hands blocks to Heat is not among them, since it calls MPI for a library of the user.
_HEAT = str(Path(__file__).parents[1] / "mpi" / "heat.py")
_PACKAGES = ("cells", "collective", "metrics", "mpi", "placement", "rank")
_PASSED_FILES = (
    *(f"{Path(__file__).parents[1] / package}/" for package in _PACKAGES),
    "src/mpi4py/",
    str(contextlib.__file__),
    "<",
)


def begin(profile: str, dask_worker: Worker) -> str:
    """Begin the profile with this identity on the rank, and return the name of its worker.

    MPI operations of SPMD calls and cells that begin from now on are counted by call site, too.

    Raises
    ------
    InvalidRequest
        If the metrics of this rank are off, or the worker is no rank.
    """
    activity = _activity(dask_worker)
    activity.meter.locate = locate
    activity.profiles[profile] = activity.counted()
    dask_worker.loop.call_later(_FORGET_AFTER_S, _end, activity, profile)
    return str(dask_worker.name)


def end(profile: str, dask_worker: Worker) -> dict[str, Any] | None:
    """End a profile on this rank, and return the counts since its begin; None if the rank has no such profile.

    Returns
    -------
    dict
        ``rank``, ``host``, ``seconds``, ``busy`` (seconds), ``messages``, and ``operations`` and ``sites`` as in
        `RankTotals`.
    """
    activity = _activity(dask_worker)
    now, before = activity.counted(), _end(activity, profile)
    return None if before is None else _counts(now, before)


def since_start(dask_worker: Worker) -> dict[str, Any]:
    """Return the counts since the start of this rank, as `end` does; without sites, which only profiles count."""
    activity = _activity(dask_worker)
    return _counts(activity.counted(), RankTotals(activity.began)) | {"sites": {}}


def _activity(worker: Worker) -> Activity:
    activity: Activity | None = getattr(worker, "activity", None)
    if activity is None:
        raise InvalidRequest(
            "A profile measures MPI ranks, and this client is connected to another kind of cluster. Pass a client of "
            "an MPICluster, for example cluster.get_client()."
        )
    if not activity.enabled:
        raise InvalidRequest(
            "The ranks of this cluster count nothing, because workbench.metrics.enabled is false. Set "
            "workbench.metrics.enabled to true, and start another cluster.",
            option="workbench.metrics.enabled",
        )
    return activity


def _end(activity: Activity, profile: str) -> RankTotals | None:
    before = activity.profiles.pop(profile, None)
    if not activity.profiles:
        activity.meter.locate = None
    return before


def _counts(now: RankTotals, before: RankTotals) -> dict[str, Any]:
    return {
        "rank": current().rank,
        "host": socket.gethostname(),
        "seconds": now.time - before.time,
        "busy": now.busy - before.busy,
        "messages": now.messages - before.messages,
        "operations": since(now.operations, before.operations),
        "sites": since(now.sites, before.sites),
    }


def since(now: Mapping[Any, Sequence[float]], before: Mapping[Any, Sequence[float]]) -> dict[Any, tuple[float, ...]]:
    """Return the growth of counts by key, without keys whose counts have not changed."""
    added = {
        key: tuple(
            max(0, after - then) for after, then in zip(counts, before.get(key, (0,) * len(counts)), strict=True)
        )
        for key, counts in now.items()
    }
    return {key: counts for key, counts in added.items() if any(counts)}


# -- call sites ------------------------------------------------------------------------------------------------

# Caches, since `locate` runs for each MPI operation: the owner of each file, and the name of each line.
_PASSED, _LIBRARY, _USER = range(3)
_owners: dict[str, int] = {}
_places: dict[tuple[str, int, str], str] = {}


def locate() -> str:
    """Return the call site of the MPI operation that is ending on this thread.

    Returns
    -------
    str
        The innermost frame of user code, like ``"file.py:12"``; without one, the innermost frame of a library.
    """
    # The two innermost frames are those of `Counters` and of its caller.
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001  (documented)
    library_frame: FrameType | None = None
    while frame is not None:
        file = frame.f_code.co_filename
        owner = _owners.get(file)
        if owner is None:
            passed_or_library = _PASSED if file.startswith(_PASSED_FILES) and file != _HEAT else _LIBRARY
            owner = _owners[file] = _USER if is_users(file) else passed_or_library
        if owner == _USER:
            return _place_name(frame)
        if library_frame is None and owner == _LIBRARY:
            library_frame = frame
        frame = frame.f_back
    return _place_name(library_frame) if library_frame is not None else "?"


def _place_name(frame: FrameType) -> str:
    key = file, line, function = frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name
    place = _places.get(key)
    if place is None:
        place = _places[key] = place_of(file, line, function)
    return place
