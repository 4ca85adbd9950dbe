"""The requests that change something, in the log at level debug: who has asked, for what, and how each has ended."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping
from typing import Any

from workbench.cells import protocol as cells
from workbench.collective import protocol as collective
from workbench.log.debug_log import is_written, write

# Not those that clients repeat in order to look.
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
    """Return handlers of requests by their names, of which those that change something log how they go."""
    if not is_written("request"):
        return dict(handlers)
    return {name: _logging(name, handler) if name in _CHANGES else handler for name, handler in handlers.items()}


def graph(client: str, tasks: int) -> None:
    """Log that a client submits a graph; blocks are placed by graphs as well."""
    write("request", "update-graph: asked by %s: %d tasks", client, tasks)


def _logging(name: str, handler: Callable[..., Any]) -> Callable[..., Any]:
    takes_comm = next(iter(inspect.signature(handler).parameters), "") == "comm"

    async def handle(comm: Any, **told: Any) -> Any:
        began, who = time.monotonic(), comm.peer_address
        write("request", "%s: asked by %s: %s", name, who, _words(told))
        try:
            result = handler(comm, **told) if takes_comm else handler(**told)
            if inspect.isawaitable(result):
                result = await result
        except BaseException as error:
            write("request", "%s: failed for %s after %.3f s: %r", name, who, time.monotonic() - began, error)
            raise
        write("request", "%s: done for %s after %.3f s", name, who, time.monotonic() - began)
        return result

    return handle


def _words(told: Mapping[str, Any]) -> str:
    """Return what a request brings, without contents: data and code are the user's own."""
    return ", ".join(f"{key}={value!r}" for key, value in told.items() if isinstance(value, str | int | float))
