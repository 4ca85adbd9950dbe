"""What code on a rank tells whoever listens in a notebook, while it runs: events of Dask, by topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distributed import Worker

# At most one: that of this process.
_workers: list[Worker] = []


def carry(worker: Worker) -> None:
    """Have events of this process go by this worker."""
    _workers[:] = [worker]


def tell(topic: str, message: Any) -> None:
    """Tell something to the clients that have subscribed to a topic; from any thread of a rank.

    Parameters
    ----------
    topic
        What they have called `distributed.Client.subscribe_topic` with.
    message
        Numbers, text, lists and dicts of these.
    """
    for worker in _workers:
        worker.log_event(topic, message)
