"""What code on a rank tells while it runs: numbers of a training, for the dashboard's curves, and events by topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.errors import InvalidRequest
from workbench.hints import Command
from workbench.metrics.training import RESERVED, TOPIC, is_number

if TYPE_CHECKING:
    from distributed import Worker


def report(step: float, *, name: str = "training", **values: float) -> None:
    """Tell how far something has come: its numbers appear on the dashboard's page *Training*, a curve each.

    Parameters
    ----------
    step
        Number of the iteration or epoch.
    name
        What is trained: numbers of one name belong together.
    **values
        Numbers by name, as ``loss=0.3, accuracy=0.91``.

    Raises
    ------
    InvalidRequest
        If a value is no number, or its name has a meaning of its own, or there is nobody to tell: no client in a
        notebook, no rank.

    Notes
    -----
    It may be called in the notebook, in tasks, in calls on all ranks and in cells, there by each rank that has
    something to tell: each has curves of its own. It costs some 20 us, and a message: call it once an iteration, not in
    an inner loop.

    Examples
    --------
    >>> for epoch in range(3):  # doctest: +SKIP
    ...     workbench.report(epoch, loss=train())
    """
    if taken := RESERVED & values.keys():
        raise InvalidRequest(f"report({min(taken)}=...): the name has a meaning of its own; take another one")
    for key, value in {"step": step, **values}.items():
        if not is_number(value):
            raise InvalidRequest(f"report() takes numbers, and {key} is {value!r}: give it as float({key})")
    try:
        record = {"step": float(step), **{key: float(value) for key, value in values.items()}}
    except OverflowError as error:
        raise InvalidRequest(f"report() takes numbers that a float can hold, and one is larger: {error}") from error
    from workbench.mpi import context

    if context.is_rank():
        place = context.current()
        who = f"{name}, rank {place.rank}"
        tell(TOPIC, {"fit": f"{who} of {place.world}", "name": who, "records": [record]})
        return
    from distributed import get_client

    try:
        client = get_client()
    except ValueError as error:
        raise InvalidRequest(
            "report() found no cluster to tell.",
            hint=("Call it after ", Command("start"), ", or with a Client of the cluster."),
        ) from error
    client.log_event(TOPIC, {"fit": name, "name": name, "records": [record]})


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
