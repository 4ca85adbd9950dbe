"""The head of a cluster, as its clients call its handlers.

Modules that call handlers of a head from a client do so by `HeadClient.call`, so that all report a lost head alike.
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
    """Calls the handlers of a head. For one event loop."""

    @property
    @abstractmethod
    def head(self) -> Any:
        """Dask's connections to the head.

        Raises
        ------
        HeadUnreachable
            If there are none.
        """

    @abstractmethod
    def unreachable(self, error: BaseException) -> HeadUnreachable:
        """Return the error to raise where `error` keeps the head from answering."""

    async def call(self, operation: str, timeout: float | None = None, /, **message: Any) -> Any:
        """Return what a handler of the head returns.

        Parameters
        ----------
        operation
            Name of the handler.
        timeout
            Seconds for the answer; None: as long as the head lives.
        **message
            Its arguments.

        Raises
        ------
        HeadUnreachable
            If the head does not answer.
        WorkbenchError
            Of the handler, as it is.
        """
        try:
            # A head that is suspended or stuck keeps its connections, so only a deadline ends the wait.
            async with asyncio.timeout(timeout) as limit:
                return await getattr(self.head, operation)(**message)
        except Exception as error:
            if limit.expired() or is_lost(error):
                raise self.unreachable(error) from error
            raise


class ClientHead(HeadClient):
    """The head as a client of Dask reaches it, in the loop of that client.

    Parameters
    ----------
    client
        The client.
    purpose
        What is asked for, as ``"the call fit"``: errors name it.
    instead
        What to do with a cluster that is no MPICluster.
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
            "is stuck or is cut off from here, or the client was closed.",
            hint=LISTED,
        )

    async def begin(self, operation: str, timeout: float | None = None, /, **message: Any) -> Any:
        """Return what `call` returns for an operation that returns something.

        Raises
        ------
        InvalidRequest
            If the scheduler of the client is no head: it returns None for operations that it does not know.
        """
        answer = await self.call(operation, timeout, **message)
        if answer is None:
            raise InvalidRequest(
                f"the client is of the cluster at {self.head.address}, which is no MPICluster: {self._purpose} needs "
                "one.",
                hint=self._instead,
            )
        return answer

    def submit(self, operation: str, timeout: float | None = None, /, **message: Any) -> Future[Any]:
        """Begin to `call`, from any thread."""
        loop: Any = self._client.loop.asyncio_loop  # type: ignore[union-attr]
        return asyncio.run_coroutine_threadsafe(self.call(operation, timeout, **message), loop)

    def wait(self, operation: str, timeout: float, /, **message: Any) -> Any:
        """Return what `call` returns, from another thread than that of the loop."""
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

    A handler that fails raises here what it has raised in the head. Where no connection could be made, Dask raises an
    OSError without a number.
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
    # Dask and asyncio raise a plain RuntimeError where connections are closed meanwhile, or the loop.
    return not isinstance(error, WorkbenchError) and str(error) in ("ConnectionPool is closed", "Event loop is closed")
