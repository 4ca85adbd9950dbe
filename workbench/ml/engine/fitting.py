"""One fit: place the data, and run the algorithm on the chosen engine."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from threadpoolctl import ThreadpoolController

from workbench import spmd
from workbench.ml.data import Data
from workbench.ml.engine import kept_arrays
from workbench.ml.engine.dask_parts import ActorParts
from workbench.ml.engine.mpi_parts import Task, on_rank
from workbench.ml.engine.parts import LocalParts
from workbench.ml.engine.progress import Report, Sender, receiver
from workbench.ml.engine.select import chosen, serves_calls
from workbench.ml.placed import in_blocks, placed
from workbench.placement.place import AlignedBlocks, PlacedBlocks

if TYPE_CHECKING:
    from distributed import Client


@dataclass
class HeldParts:
    """Parts on Dask workers for several tasks with the same `Task.part` on the same data: none before the first task.

    They are released with this object.
    """

    parts: ActorParts | None = None


def fit(task: Task, data: Data, engine: str, report: Report | None, held: HeldParts | None = None) -> tuple[Any, str]:
    """Run an algorithm, and return its result and the engine: ``"dask"``, ``"mpi"`` or ``"local"``.

    With `Task.kept` the result is a pair: the result of the algorithm, and a tuple of the kept arrays or placed Dask
    arrays.

    Parameters
    ----------
    task, data
        The task and its data.
    engine : {"auto", "mpi", "dask", "local"}
        ``"mpi"``: one call of all ranks. ``"dask"``: requests of this process to all ranks, on any Dask
        cluster. ``"local"``: this process, for arrays. ``"auto"`` is ``"local"`` for arrays, and for Dask collections
        ``"mpi"`` on an `MPICluster`, else ``"dask"``; the setting ``workbench.ml.engine`` replaces
        ``"auto"``.
    report
        Receives the records of `Parts.report`, in this process.
    held
        Parts of earlier tasks, which the engine ``"dask"`` uses again; None: the parts are released after the task. A
        part must not keep a state of a task.
    """
    engine = chosen(engine, distributed=data.distributed)
    if engine == "local":
        part = task.part(*data.columns(), 0)
        result = task.algorithm(LocalParts([part], report), task.settings)
        return (result, part.kept()) if task.kept else result, "local"
    X, y, weight = map(in_blocks, placed(data.columns()))
    blocks = Data(X, y, weight, distributed=True)
    if engine == "auto":
        engine = "mpi" if serves_calls(PlacedBlocks.of(X).client) else "dask"
    identity = uuid.uuid4().hex
    if engine == "mpi":
        result = _by_mpi(task, blocks, identity, report)
    else:
        result = _by_dask(task, blocks, identity, report, held)
    if not task.kept:
        return result, engine
    rows = y.collection if isinstance(y, AlignedBlocks) else X
    return (result, kept_arrays.collect(identity, task.kept, X, rows.chunks[0])), engine


def _starts(data: Data) -> list[int]:
    """Return the number of the first row of each block."""
    return [0, *itertools.accumulate(data.X.chunks[0])][:-1]


def _by_dask(task: Task, data: Data, fit: str, report: Report | None, held: HeldParts | None) -> Any:
    of_x = PlacedBlocks.of(data.X)
    sender = Sender(fit, task.checks.estimator, functools.partial(_log_event, of_x.client))

    def send(record: Mapping[str, Any]) -> None:
        sender(record)
        if report is not None:
            report(record)

    parts = held.parts if held else None
    if parts is None:
        columns = map(of_x.arguments, data.columns())
        blocks = list(zip(of_x.pins, _starts(data), zip(*columns, strict=True), strict=True))
        parts = ActorParts(of_x.client, task.part, task.checks, blocks)
        if held:
            held.parts = parts
    parts = parts.reporting(send)
    try:
        # The vectors of this process are small: idle threads of BLAS would take a core from the ranks.
        with _thread_pools(len(sys.modules)).limit(limits=1, user_api="blas"):
            result = task.algorithm(parts, task.settings)
        if task.kept:
            parts.sum("leave", fit)
    finally:
        if not held:
            parts.end()
    sender.flush()
    return result


def _log_event(client: Client, topic: str, message: Any) -> None:
    """Send an event without waiting for the scheduler."""

    async def send() -> None:
        # The next request of the fit reports a lost head or a closed client.
        with contextlib.suppress(OSError, AttributeError):
            await client.log_event(topic, message)

    loop: Any = client.loop
    loop.add_callback(send)


@functools.lru_cache(maxsize=1)
def _thread_pools(modules: int) -> ThreadpoolController:  # noqa: ARG001  (the key of the cache)
    """Return the thread pools of this process; they are searched again only after an import, as that takes 3 ms."""
    return ThreadpoolController()


def _by_mpi(task: Task, data: Data, fit: str, report: Report | None) -> Any:
    client = PlacedBlocks.of(data.X).client
    # Without a limit of bytes: `fit` has no argument for one.
    options: dict[str, Any] = {"client": client, "result": "root", "limit": math.inf, "writes": False}
    call = spmd(**options, name=f"{task.checks.estimator}.fit", on_event=None if report is None else receiver(report))
    return call(on_rank)(task, _starts(data), fit, *data.columns())
