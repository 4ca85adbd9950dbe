"""`workbench.report`: training values for the dashboard's curves, sent from ranks and notebooks as Dask events."""

from __future__ import annotations

from typing import Any

from workbench.errors import InvalidRequest
from workbench.hints import Command
from workbench.metrics.training import RESERVED, TOPIC, is_number
from workbench.session.current import current_worker
from workbench.text import brief


def report(step: float, *, name: str = "training", **values: float) -> None:
    """Log training values. Each value becomes a curve on the dashboard's page *Training*.

    Parameters
    ----------
    step : float
        Number of the iteration or epoch.
    name : str, default="training"
        Name of the training: values of one name belong together.
    **values : float
        Numbers by name, for example ``loss=0.3, accuracy=0.91``.

    Raises
    ------
    InvalidRequest
        If a value is no number, if its name is reserved, or if there is no cluster: no rank, and no client in the
        notebook.

    Notes
    -----
    The function works in the notebook, in tasks, in SPMD calls and in cells. Each rank that calls it has its own
    curves. One call costs about 20 µs and a message: call it once per iteration, not in an inner loop.

    Examples
    --------
    >>> for epoch in range(3):
    ...     workbench.report(epoch, loss=1 / (epoch + 1))
    """
    if reserved := RESERVED & values.keys():
        raise InvalidRequest(
            f"report({min(reserved)}=...) is not valid: {min(reserved)!r} is a reserved name. Choose another keyword."
        )
    for key, value in {"step": step, **values}.items():
        if not is_number(value):
            raise InvalidRequest(f"report() takes numbers, and {key} is {value!r}. Pass float({key}).")
    name = brief(str(name))
    try:
        record = {"step": float(step), **{brief(key): float(value) for key, value in values.items()}}
    except OverflowError as error:
        raise InvalidRequest(f"report() takes numbers in the range of a float, and one is larger: {error}.") from error
    from workbench.mpi import context

    if context.is_rank():
        curve = f"{name}, rank {context.current().rank}"
        tell(TOPIC, {"fit": curve, "name": curve, "records": [record]})
        return
    from distributed import get_client

    try:
        client = get_client()
    except ValueError as error:
        raise InvalidRequest(
            "report() found no cluster.",
            hint=("Call report() after ", Command("start"), ", or with a Client of the cluster."),
        ) from error
    client.log_event(TOPIC, {"fit": name, "name": name, "records": [record]})


def tell(topic: str, message: Any) -> None:
    """Log a Dask event of numbers, text, lists and dicts, from any thread of a rank."""
    if (worker := current_worker()) is not None:
        worker.log_event(topic, message)
