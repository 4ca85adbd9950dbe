"""How a rank answers the head: with a result, or with the fields of an error, since the head unpacks no errors."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from workbench.errors import WorkbenchError

Handler = Callable[..., Awaitable[Any]]


def answering(handlers: Mapping[str, Handler]) -> dict[str, Handler]:
    """Return handlers for what the head asks by `Asking.ask`, made of plain coroutine functions.

    See `workbench.collective.rank_rpc.Asking`.

    Each answers ``{"answer": result}``, or, if the function raised, ``{"raised": fields}``, as of
    `WorkbenchError.fields`; of other errors than ours ``kind`` and ``message`` alone.
    """
    return {operation: _answering(handler) for operation, handler in handlers.items()}


def _answering(handler: Handler) -> Handler:
    @functools.wraps(handler)
    async def answer(**told: Any) -> dict[str, Any]:
        try:
            return {"answer": await handler(**told)}
        except WorkbenchError as error:
            return {"raised": error.fields()}
        except Exception as error:  # noqa: BLE001  (the head raises it)
            return {"raised": {"kind": type(error).__name__, "message": str(error)}}

    return answer
