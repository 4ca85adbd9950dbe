"""One fit: its data brought to where they are needed, and its algorithm run on the engine that was chosen."""

from __future__ import annotations

import itertools
import math
import uuid
from collections.abc import Mapping
from typing import Any

from threadpoolctl import threadpool_limits

from workbench.ml.data import Data
from workbench.ml.engine import kept_arrays
from workbench.ml.engine.dask_parts import ActorParts
from workbench.ml.engine.parts import LocalParts
from workbench.ml.engine.progress import Listener, Report, Sender
from workbench.ml.engine.rank_task import Task, on_rank
from workbench.ml.engine.select import chosen, serves_calls
from workbench.ml.placed import in_blocks, placed, whereabouts
from workbench.placement import layout, pinning


def fit(task: Task, data: Data, engine: str, report: Report | None) -> tuple[Any, str]:
    """Run an algorithm, and return what it has found, and the engine: ``"dask"``, ``"mpi"`` or ``"local"``.

    Where the parts keep something (`Task.kept`) that is a pair: what the algorithm has found, and a tuple of what the
    parts keep, arrays or placed Dask arrays.

    Parameters
    ----------
    task, data
        What to fit, and on what.
    engine : {"auto", "mpi", "dask", "local"}
        ``"mpi"`` for one call of all ranks of an MPI world, ``"dask"`` for requests of this process to all ranks, which
        works on any Dask cluster, ``"local"`` for arrays in this process. With ``"auto"`` arrays in this process are
        fitted here, and Dask collections by MPI where one world holds all blocks, else by Dask; the setting
        ``workbench.ml.engine`` is another default.
    report
        Receives the records of `Parts.report`, in this process.
    """
    engine = chosen(engine, distributed=data.distributed)
    if engine == "local":
        part = task.part(*data.columns(), 0)
        result = task.algorithm(LocalParts([part], report), task.settings)
        return (result, part.kept()) if task.kept else result, "local"
    X, y, weight = map(in_blocks, placed(data.columns(), engine))
    blocks = Data(X, y, weight, distributed=True)
    if engine == "auto":
        engine = "mpi" if _has_mpi(blocks) else "dask"
    identity = uuid.uuid4().hex
    result = (_by_mpi if engine == "mpi" else _by_dask)(task, blocks, identity, report)
    if not task.kept:
        return result, engine
    rows = y.collection if isinstance(y, layout.AlignedBlocks) else X
    return (result, kept_arrays.collect(identity, task.kept, X, rows.chunks[0])), engine


def _starts(data: Data) -> list[int]:
    """Return the number of the first row of each block."""
    return [0, *itertools.accumulate(data.X.chunks[0])][:-1]


def _has_mpi(data: Data) -> bool:
    """Return whether all blocks lie in one MPI world of a cluster that runs calls on all ranks."""
    client, pins = whereabouts(data.X)
    if not serves_calls(client):
        return False
    ranks = {rank.address: pinning.world_of(rank.name) for rank in pinning.target_workers(client, "rank")}
    return len({ranks.get(pin.address) for pin in pins}) == 1


def _by_dask(task: Task, data: Data, fit: str, report: Report | None) -> Any:
    client, pins = whereabouts(data.X)
    sender = Sender(fit, task.checks.estimator, client.log_event, awaited=False)

    def send(record: Mapping[str, Any]) -> None:
        sender(record)
        if report is not None:
            report(record)

    columns = [layout.block_arguments(client, value, pins) for value in data.columns()]
    blocks = list(zip(pins, _starts(data), zip(*columns, strict=True), strict=True))
    parts = ActorParts(client, task.part, task.checks, blocks, report=send)
    try:
        # Between two steps there are small vectors here: threads that wait for more would take a core from the ranks.
        with threadpool_limits(1, user_api="blas"):
            result = task.algorithm(parts, task.settings)
        if task.kept:
            parts.sum("leave", fit)
    finally:
        parts.end()
    sender.flush()
    return result


def _by_mpi(task: Task, data: Data, fit: str, report: Report | None) -> Any:
    from workbench.collective.client import PendingCall
    from workbench.collective.request import request

    client, _ = whereabouts(data.X)
    listener = Listener(client, fit, report) if report else None
    args = [task, _starts(data), fit, listener is not None, *data.columns()]
    # Nobody who calls `fit` could ask for more.
    name = f"{task.checks.estimator}.fit"
    call = PendingCall(
        request(on_rank, args, {}, client=client, result="root", world=None, limit=math.inf, timeout=None, name=name)
    )
    if listener is None:
        return call.result()[0]
    listener.listen(call)
    try:
        result, records = call.result()
        listener.finish(records)
    finally:
        listener.close()
    return result
