"""What all requests of the API share: who may ask, JSON in and out, and trouble in words."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from http.client import responses
from pathlib import Path
from typing import Any, TypeVar, cast

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from tornado import web

from workbench.deploy import registry
from workbench.deploy.record import Record
from workbench.errors import ClusterNotFound, InvalidRequest, WorkbenchError
from workbench.hints import PANEL
from workbench.server.actions import AlreadyPending
from workbench.server.blocking_files import DeadlineReader, records
from workbench.server.kernels import Kernels
from workbench.server.log import logger
from workbench.server.state import StateFeed

ROOT = "workbench/api"
"""What follows the base URL of a server."""

# Dry runs at a time.
_CHECKS = 2

_Method = TypeVar("_Method", bound=Callable[..., Any])


@dataclass(frozen=True)
class HandlerContext:
    """What all requests share."""

    board: StateFeed
    """What is known of clusters."""
    kernels: Kernels
    """The kernels of the server."""
    root: Path
    """The server's folder."""
    files: DeadlineReader
    """What is in it."""
    may_start: bool = True
    """Whether clusters can be started by requests."""
    checks: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_CHECKS))
    """Dry runs that may go on at a time: each is a process, and a question to a scheduler."""


def requires(action: str) -> Callable[[_Method], _Method]:
    """Return a decorator for methods of handlers: only for who is logged in, and may do this by the authorizer."""

    def decorate(method: _Method) -> _Method:
        guarded: Any = web.authenticated(authorized(action=action)(method))
        return cast("_Method", guarded)

    return decorate


class Handler(APIHandler):
    """Answers a request in JSON, and tells trouble as ``message`` and ``log``, the end of a log or None."""

    auth_resource = "workbench"

    def initialize(self, shared: HandlerContext) -> None:
        """Take what all requests share."""
        self.shared = shared

    def body(self) -> dict[str, Any]:
        """Return the object in the request's body.

        Raises
        ------
        InvalidRequest
            If it is something else.
        """
        try:
            told = json.loads(self.request.body)
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"the request's body is no JSON ({error}); send an object.") from error
        if not isinstance(told, dict):
            raise InvalidRequest(f"the request's body is {str(told)[:40]!r}; send an object.")
        return told

    def accept(self, told: dict[str, Any]) -> None:
        """Answer that what was asked for has begun."""
        self.set_status(202)
        self.finish(told)

    async def record(self, name: str) -> Record:
        """Return the record of a cluster; raises as `workbench.deploy.registry.read` and `DeadlineReader.read`."""
        return await records.read(registry.read, valid_name(name))

    def write_error(self, status_code: int, **told: Any) -> None:
        """Answer with the trouble in words."""
        error = (told.get("exc_info") or (None, None))[1]
        status, message, log = error_response(error, status_code)
        self.set_status(status)
        self.finish({"message": message, "log": log or None})

    def log_exception(self, typ: Any, value: BaseException | None, tb: Any) -> None:
        """Log what nobody has foreseen."""
        if not isinstance(value, web.HTTPError | WorkbenchError | TimeoutError):
            logger.error("%s %s failed", self.request.method, self.request.path, exc_info=value)


def valid_name(name: str) -> str:
    """Return a name of a cluster that came in a URL.

    Raises
    ------
    ClusterNotFound
        If no cluster can have it.
    """
    try:
        return registry.check_name(name)
    except InvalidRequest as error:
        raise error.retold(ClusterNotFound, error.message) from error


# The first that an error is counts.
_STATUSES = (
    (ClusterNotFound, 404),
    (AlreadyPending, 409),
    (InvalidRequest, 400),
    (TimeoutError, 504),
    (WorkbenchError, 502),
)


def error_response(error: BaseException | None, status: int) -> tuple[int, str, str]:
    """Return the status, the words and the log for an error, or for a status that was chosen already."""
    for kind, its in _STATUSES:
        if isinstance(error, kind):
            if isinstance(error, WorkbenchError):
                return its, error.words(PANEL), error.log
            return its, str(error) or "it was not done in time", ""
    if status == 500:
        return 500, "that went wrong in a way that nobody has foreseen; see the server's log.", ""
    words = error.log_message if isinstance(error, web.HTTPError) else None
    return status, words or responses.get(status, ""), ""
