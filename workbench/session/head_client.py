"""Calls of a client to handlers of the head.

All modules of clients use `HeadClient.call`, so that all report a lost head in the same way.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Any

from workbench.errors import HeadUnreachable, InvalidRequest, WorkbenchError
from workbench.hints import LISTED

if TYPE_CHECKING:
    from distributed import Client


class HeadClient(ABC):
    """Calls the handlers of a head, on one event loop."""

    @property
    @abstractmethod
    def head(self) -> Any:
        """Dask's connections to the head; raises HeadUnreachable if none exist."""

    @abstractmethod
    def unreachable(self, error: BaseException) -> HeadUnreachable:
        """Return the error to raise after `error` of a connection to the head."""

    async def call(self, operation: str, timeout: float | None = None, /, **message: Any) -> Any:
        """Return the result of the handler `operation` of the head, or raise its error.

        Raises
        ------
        HeadUnreachable
            If the head does not answer within `timeout` seconds (None: no limit), or is lost.
        """
        try:
            # A suspended or blocked head keeps its connections, so only a deadline ends the wait.
            async with asyncio.timeout(timeout) as limit:
                return await getattr(self.head, operation)(**message)
        except Exception as error:
            if limit.expired() or is_lost(error):
                raise self.unreachable(error) from error
            raise


class ClientHead(HeadClient):
    """The head of a Dask client, called on the event loop of the client.

    Parameters
    ----------
    client
        The client.
    purpose
        Name of the operation in errors, for example ``"the call fit"``.
    instead
        Hint for a client of another kind of cluster.
    """

    def __init__(self, client: Client, purpose: str, instead: str = "") -> None:
        self._client, self._purpose, self._instead = client, purpose, instead

    @property
    def head(self) -> Any:
        """As `HeadClient.head`."""
        if self._client.scheduler is None:
            raise self.unreachable(ConnectionError())
        return self._client.scheduler

    def unreachable(self, error: BaseException) -> HeadUnreachable:
        """As `HeadClient.unreachable`."""
        return HeadUnreachable(
            f"the head of the cluster was lost during {self._purpose} ({type(error).__name__}): the cluster has ended, "
            "hangs or is not reachable from here, or the client was closed.",
            hint=LISTED,
        )

    async def begin(self, operation: str, timeout: float | None = None, /, **message: Any) -> Any:
        """Return the result of `call`, or raise InvalidRequest if the scheduler does not know the operation."""
        answer = await self.call(operation, timeout, **message)
        if answer is None:  # Dask's scheduler ignores unknown operations
            raise InvalidRequest(
                f"the client is connected to {self.head.address}, which is not an MPICluster, but {self._purpose} "
                "requires an MPICluster.",
                hint=self._instead,
            )
        return answer

    def submit(self, operation: str, timeout: float | None = None, /, **message: Any) -> Future[Any]:
        """Start `call` from any thread."""
        loop: Any = self._client.loop.asyncio_loop  # type: ignore[union-attr]
        return asyncio.run_coroutine_threadsafe(self.call(operation, timeout, **message), loop)

    def wait(self, operation: str, timeout: float, /, **message: Any) -> Any:
        """Return the result of `call`, from a thread other than that of the loop."""
        if self._client.status != "running":
            raise self.unreachable(ConnectionError())
        try:
            return self._client.sync(self.call, operation, timeout, **message)
        except CancelledError as error:  # the loop of the client has ended
            raise self.unreachable(error) from error
        except RuntimeError as error:
            if self._client.status == "running" and not _is_closed(error):
                raise  # the error of a handler
            raise self.unreachable(error) from error


def is_lost(error: BaseException) -> bool:
    """Return whether an error of a call means that the connection to the head is lost.

    The error of a handler is raised here unchanged. If no connection can be made, Dask raises an OSError without a
    number.
    """
    match error:
        case WorkbenchError() | TimeoutError():
            return False
        case ConnectionError():
            return True
        case OSError():
            return error.errno is None
        case RuntimeError():
            return _is_closed(error)
        case _:
            return False


def _is_closed(error: RuntimeError) -> bool:
    # Dask and asyncio raise a plain RuntimeError if the connections or the loop are closed during a call.
    return not isinstance(error, WorkbenchError) and str(error) in ("ConnectionPool is closed", "Event loop is closed")
