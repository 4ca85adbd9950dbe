"""What tests have left in a cluster."""

from __future__ import annotations

from typing import Any

from distributed.protocol import pickle

from workbench import MPICluster


def left_in(cluster: MPICluster) -> dict[str, Any]:
    """Return what should not be in the head of an unused cluster."""
    head: Any = cluster.scheduler_comm
    answer = cluster.sync(head.run_function, function=pickle.dumps(_what_is_left))
    return answer["result"] if answer["status"] == "OK" else answer


def _what_is_left(dask_scheduler: Any) -> dict[str, Any]:
    head = dask_scheduler.handlers["workbench_status"].__self__
    world = head.current.world
    found = {
        "tasks": [str(key) for key in dask_scheduler.tasks],
        "other ranks than at the start": world.index,
        "ranks that are gone": world.missing(),
        "ranks that do not come back": world.broken,
        "calls on all ranks": [*head.spmd.operations],
        "cells": [cell.id for cell in head.cells.known.values() if not cell.task.done()],
    }
    return {what: left for what, left in found.items() if left}
