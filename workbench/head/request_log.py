"""Logs requests that change the state of the cluster, at level debug: sender, content and result."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping
from typing import Any

from workbench.cells import protocol as cells
from workbench.collective import protocol as collective
from workbench.log.debug_log import is_written, write

# Requests that clients repeat to read the state are not logged.
_CHANGES = frozenset(
    {
        "broadcast",
        "rebalance",
        "replicate",
        "restart",
        "restart_workers",
        "retire_workers",
        "run_function",
        "scatter",
        "terminate",
        collective.BROADCAST,
        collective.BROADCAST_BEGIN,
        cells.BEGIN,
        cells.INTERRUPT,
        "workbench_close",
        "workbench_restart",
        "workbench_scale",
        collective.CALL,
    }
)


def logged(handlers: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """Return handlers by name, in which those of changes log their requests."""
    if not is_written("request"):
        return dict(handlers)
    return {name: _logging(name, handler) if name in _CHANGES else handler for name, handler in handlers.items()}


def graph(client: str, tasks: int) -> None:
    """Log that a client submits a graph; blocks are placed with graphs too."""
    write("request", "update-graph: from %s: %d tasks", client, tasks)


def _logging(name: str, handler: Callable[..., Any]) -> Callable[..., Any]:
    takes_comm = next(iter(inspect.signature(handler).parameters), "") == "comm"

    async def handle(comm: Any, **fields: Any) -> Any:
        began, sender = time.monotonic(), comm.peer_address
        write("request", "%s: from %s: %s", name, sender, _plain_values(fields))
        try:
            result = handler(comm, **fields) if takes_comm else handler(**fields)
            if inspect.isawaitable(result):
                result = await result
        except BaseException as error:
            write("request", "%s: failed for %s after %.3f s: %r", name, sender, time.monotonic() - began, error)
            raise
        write("request", "%s: done for %s after %.3f s", name, sender, time.monotonic() - began)
        return result

    return handle


def _plain_values(fields: Mapping[str, Any]) -> str:
    """Return the plain values of a request, without data and code of the user."""
    return ", ".join(f"{key}={value!r}" for key, value in fields.items() if isinstance(value, str | int | float))
