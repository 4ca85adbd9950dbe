"""The Dask worker of this process, if the process is a rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distributed import Worker

_workers: list[Worker] = []


def carry(worker: Worker) -> None:
    """Make this the worker of the process; called one time, at the start of a rank."""
    _workers[:] = [worker]


def current_worker() -> Worker | None:
    """Return the worker of this process; None if the process is no rank. Thread-safe."""
    return _workers[0] if _workers else None
