"""Base of all handlers of the API: authorization, JSON, and errors as messages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http.client import responses
from pathlib import Path
from typing import Any, TypeVar, cast

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from tornado import web
from tornado.websocket import WebSocketHandler

from workbench.deploy import registry
from workbench.deploy.record import Record
from workbench.errors import ClusterNotFound, InvalidRequest, WorkbenchError
from workbench.hints import PANEL
from workbench.lab.server.actions import AlreadyPending
from workbench.lab.server.kernels import Kernels
from workbench.lab.server.process import logger
from workbench.lab.server.state import StateFeed
from workbench.lab.server.survey import DeadlineReader, records

ROOT = "workbench/api"
"""Path of the API below the base URL of a server."""

# Most concurrent processes of requests.
_PROCESSES = 4

_Method = TypeVar("_Method", bound=Callable[..., Any])


@dataclass(frozen=True)
class HandlerContext:
    """Objects that all requests share."""

    board: StateFeed
    """State of the clusters."""
    kernels: Kernels
    """The kernels of the server."""
    root: Path
    """The server's folder."""
    files: DeadlineReader
    """Reader for `root`."""
    may_start: bool = True
    """Whether requests can start clusters."""
    processes: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_PROCESSES))
    """Limit of concurrent processes that answer a request: each takes memory, and may query a scheduler."""

    @asynccontextmanager
    async def place(self, deadline: float) -> AsyncIterator[float]:
        """Wait at most `deadline` seconds for one of `processes`, and keep it in this context; yield the seconds left.

        Raises
        ------
        TimeoutError
            If the deadline expired.
        """
        until = asyncio.get_running_loop().time() + deadline
        try:
            async with asyncio.timeout_at(until):
                await self.processes.acquire()
        except TimeoutError as error:
            raise TimeoutError(
                f"the answer did not arrive within {deadline:.0f} s: this server runs at most {_PROCESSES} processes "
                "for requests at the same time. Try again later."
            ) from error
        try:
            yield until - asyncio.get_running_loop().time()
        finally:
            self.processes.release()


def requires(action: str) -> Callable[[_Method], _Method]:
    """Return a decorator for methods of handlers that need a login and the authorizer's permission for an action."""

    def decorate(method: _Method) -> _Method:
        guarded: Any = web.authenticated(authorized(action=action)(method))
        return cast("_Method", guarded)

    return decorate


class Handler(APIHandler):
    """Answers a request in JSON; an error has ``message`` and ``log``, the end of a log or None."""

    auth_resource = "workbench"

    def initialize(self, shared: HandlerContext) -> None:
        """Set the shared objects, which tornado passes as a keyword argument."""
        self.shared = shared

    def body(self) -> dict[str, Any]:
        """Return the JSON object in the request's body.

        Raises
        ------
        InvalidRequest
            If the body is not a JSON object.
        """
        try:
            body = json.loads(self.request.body)
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"the body of the request is not JSON ({error}). Send a JSON object.") from error
        if not isinstance(body, dict):
            raise InvalidRequest(f"the body of the request is {str(body)[:40]!r}. Send a JSON object.")
        return body

    def accept(self, response: dict[str, Any]) -> None:
        """Answer with status 202: the server has started the requested action."""
        self.set_status(202)
        self.finish(response)

    @property
    def key(self) -> str | None:
        """The id of one of several clusters that have or had the same name."""
        return self.get_query_argument("id", None)

    async def record(self, name: str) -> Record:
        """Return the record of a cluster.

        Raises
        ------
        ClusterNotFound
            If the cluster does not exist, or the request has the id of an earlier cluster of that name: the page may
            have shown that one when its user clicked.
        WorkbenchError
            As of `workbench.deploy.registry.read` and `DeadlineReader.read`.
        """
        record = await records.read(registry.read, valid_name(name))
        if self.key not in (None, record.id):
            raise ClusterNotFound(f"the cluster {name!r} has ended, and another cluster now has its name.")
        return record

    def write_error(self, status_code: int, **details: Any) -> None:
        """Answer with the message and the log of an error."""
        error = (details.get("exc_info") or (None, None))[1]
        status, message, log = error_response(error, status_code)
        self.set_status(status)
        self.finish({"message": message, "log": log or None})

    def log_exception(self, typ: Any, value: BaseException | None, tb: Any) -> None:
        """Log an error that is not expected."""
        if not isinstance(value, web.HTTPError | WorkbenchError | TimeoutError):
            logger.error("%s %s failed", self.request.method, self.request.path, exc_info=value)


def valid_name(name: str) -> str:
    """Return the name of a cluster from a URL, or raise `ClusterNotFound` if the name is not valid."""
    try:
        return registry.check_name(name)
    except InvalidRequest as error:
        raise error.converted(ClusterNotFound, error.message) from error


# The first matching class counts.
_STATUSES = (
    (ClusterNotFound, 404),
    (AlreadyPending, 409),
    (InvalidRequest, 400),
    (TimeoutError, 504),
    (WorkbenchError, 502),
)


def error_response(error: BaseException | None, status: int) -> tuple[int, str, str]:
    """Return status, message and log for an error, or for a status without an error of the workbench."""
    for kind, code in _STATUSES:
        if isinstance(error, kind):
            if isinstance(error, WorkbenchError):
                return code, error.words(PANEL), error.log
            return code, str(error) or "the request timed out", ""
    if status == 500:
        return 500, "an unexpected error occurred. See the log of the server.", ""
    message = error.log_message if isinstance(error, web.HTTPError) else None
    return status, message or responses.get(status, ""), ""


# Seconds between two pings, and for the answer, unless the site has set `ServerApp.websocket_ping_interval`.
_PING = 30.0


class PingingWebSocket(WebSocketHandler):
    """A websocket that is closed when its browser does not answer any more."""

    @property
    def ping_interval(self) -> float:
        """Seconds between two pings."""
        return self.settings.get("websocket_ping_interval") or _PING

    @property
    def ping_timeout(self) -> float:
        """Seconds for the answer to a ping."""
        return self.settings.get("websocket_ping_timeout") or self.ping_interval
