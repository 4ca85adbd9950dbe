"""One fit: its data brought to where they are needed, and its algorithm run on the engine that was chosen."""

from __future__ import annotations

import dataclasses
import itertools
import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from distributed import get_worker
from threadpoolctl import threadpool_limits

from workbench import rank
from workbench.errors import InvalidRequest
from workbench.ml.actor_parts import ActorParts
from workbench.ml.data import Data
from workbench.ml.parts import LocalParts
from workbench.ml.progress import Listener, Report, Sender
from workbench.ml.task import Task, on_rank
from workbench.placing import alike, pinning, source

if TYPE_CHECKING:
    from collections.abc import Sequence

    from distributed import Client

ENGINES = ("auto", "dask", "mpi")
"""What an estimator may be told."""

# With "auto": round trips that are looked at, after one that is not, and the share of them beside the computing from
# which on MPI is worth its start, of some 10 ms.
_LOOKED_AT, _SHARE = 3, 0.05


def fit(task: Task, data: Data, engine: str, report: Report | None) -> tuple[Any, str]:
    """Run an algorithm, and return what it has found, and the engine: ``"dask"``, ``"mpi"`` or ``"local"``.

    Parameters
    ----------
    task, data
        What to fit, and on what.
    engine
        One of `ENGINES`. With ``"auto"`` arrays in this process are fitted here; Dask collections by Dask for some
        round trips, and by MPI from the beginning if these take longer than the computing by a twentieth.
    report
        Is given the records of `Parts.report`, in this process.
    """
    if engine == "auto" and not data.distributed:
        parts = LocalParts([task.part(*data.columns(), 0)], report)
        return task.finish(task.algorithm(parts, task.settings), data), "local"
    _refuse_on_workers()
    placed = _placed(data, engine)
    if engine == "mpi":
        return task.finish(_by_mpi(task, placed, report), placed), "mpi"
    stopwatch = _Stopwatch(ends=engine == "auto" and _has_mpi(placed))
    try:
        return task.finish(_by_dask(task, placed, report, stopwatch), placed), "dask"
    except _Slow:
        return task.finish(_by_mpi(task, placed, report), placed), "mpi"


def _refuse_on_workers() -> None:
    """Raise InvalidRequest where a fit would wait for the very worker that it runs on."""
    try:
        where = f"in a task, on {get_worker().address}"
    except ValueError:
        if not rank.is_rank():
            return
        where = "on a rank, in a cell or in a call on all ranks"
    raise InvalidRequest(
        f"a fit on the ranks was begun {where}, and would wait for itself: fit in the notebook, or pass arrays with "
        'engine="auto", which are fitted where they are'
    )


def _placed(data: Data, engine: str) -> Data:
    """Return the data as one block per rank, all alike; themselves where they are placed so."""
    from workbench.placement import place

    given = [value for value in data.columns() if value is not None]
    if _alike(given):
        return data
    placed = place(*given, world=0 if engine == "mpi" else None)
    rest = iter(placed if len(given) > 1 else [placed])
    X, y, weight = (None if value is None else next(rest) for value in data.columns())
    return Data(X, y, weight, distributed=True)


def _alike(columns: Sequence[Any]) -> bool:
    if not all(map(source.placed_per, columns)):
        return False
    blocks = [alike.blocks(column) for column in columns]
    first, *others = (alike.pins(its[0].client, column, its) for column, its in zip(columns, blocks, strict=True))
    return all(pins == first for pins in others)


def _whereabouts(placed: Data) -> tuple[Client, Sequence[pinning.Pin]]:
    """Return where the blocks lie, and the client that has placed them."""
    blocks = alike.blocks(placed.X)
    client = pinning.connected(blocks[0].client)
    return client, alike.pins(client, placed.X, blocks)


def _starts(data: Data) -> list[int]:
    """Return the number of the first row of each block."""
    return [0, *itertools.accumulate(data.X.chunks[0])][:-1]


class _Slow(Exception):
    """Round trips take too long beside the computing."""


class _Stopwatch:
    """Raises `_Slow` after some round trips, if that is wanted."""

    def __init__(self, *, ends: bool) -> None:
        self._ends = ends
        self._number = 0
        self._whole = self._computing = 0.0

    def __call__(self, whole: float, computing: float) -> None:
        self._number += 1
        if self._number > 1:
            self._whole += whole
            self._computing += computing
        if self._ends and self._number > _LOOKED_AT and self._whole - self._computing > _SHARE * self._computing:
            raise _Slow


def _has_mpi(placed: Data) -> bool:
    """Tell whether all blocks lie in one MPI world of a cluster that runs calls on all ranks."""
    client, pins = _whereabouts(placed)
    scheduler: Any = client.scheduler
    worlds = client.sync(scheduler.workbench_where)
    ranks = {rank.address: pinning.world_of(rank.name) for rank in pinning.targets(client, "rank")}
    return worlds is not None and len({ranks.get(pin.address) for pin in pins}) == 1


def _by_dask(task: Task, data: Data, report: Report | None, timed: Callable[[float, float], None]) -> Any:
    client, pins = _whereabouts(data)
    sender = Sender(uuid.uuid4().hex, task.checks.estimator, client.log_event)

    def tell(record: Mapping[str, Any]) -> None:
        sender(record)
        if report is not None:
            report(record)

    columns = [alike.per_block(client, value, pins) for value in data.columns()]
    blocks = list(zip(pins, _starts(data), zip(*columns, strict=True), strict=True))
    parts = ActorParts(client, task.part, task.checks, blocks, report=tell, timed=timed)
    # Between two steps there are small vectors here, and threads that wait for more would take a core from the ranks.
    with threadpool_limits(1, user_api="blas"):
        found = task.algorithm(parts, task.settings)
    sender.flush()
    return found


def _by_mpi(task: Task, data: Data, report: Report | None) -> Any:
    from workbench.calling.call import Call
    from workbench.calling.request import request

    client, _ = _whereabouts(data)
    fit = uuid.uuid4().hex
    listener = Listener(client, fit, report) if report else None
    args = [task, _starts(data), fit, listener is not None, *data.columns()]
    asked = request(on_rank, args, {}, client=client, result="root", world=None, limit=None, timeout=None)
    call = Call(dataclasses.replace(asked, name=f"{task.checks.estimator}.fit"))
    if listener is None:
        return call.result()[0]
    listener.listen(call)
    try:
        found, records = call.result()
        listener.finish(records)
    finally:
        listener.close()
    return found
