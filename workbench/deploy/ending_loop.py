"""The end of the event loop of a cluster object, with its thread and its files, and Dask's requests after an end."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from distributed.core import Status
from distributed.deploy.cluster import Cluster
from distributed.utils import LoopRunner

from workbench.errors import HeadUnreachable

if TYPE_CHECKING:
    from distributed import Client

    from workbench.deploy.connection import HeadConnection

# Seconds for the end of the thread.
_LOOP_END_S = 1.0


class EndingLoop(Cluster):
    """A Dask cluster whose `close` ends its event loop, which Dask does for its local clusters only.

    The methods of Dask that ask the scheduler raise the reason of the end of the cluster, not an error of a
    connection.
    """

    _connection: HeadConnection

    def close(self, timeout: float | None = None) -> Any:
        """Close the object, and end the loop unless clients still use the loop.

        Parameters
        ----------
        timeout : float, optional
            Deadline in seconds.

        Returns
        -------
        None
            Of an asynchronous object an awaitable.
        """
        try:
            closing = super().close(timeout)
        except HeadUnreachable:  # the loop has ended
            closing = None
        if not self.asynchronous:
            self._end_loop()
        return closing

    def sync(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a coroutine function on the loop.

        Parameters
        ----------
        func : callable
            The coroutine function.
        *args, **kwargs : object
            Its arguments.

        Returns
        -------
        object
            The result; of an asynchronous object an awaitable.

        Raises
        ------
        HeadUnreachable
            If this object is closed.
        """
        if self.asynchronous:
            return super().sync(func, *args, **kwargs)
        if self.status == Status.closed:
            raise self._connection.lost()
        try:
            # Another thread may close this object: the loop stays until the end of this call.
            user = LoopRunner(loop=self.loop)
            user.start()
        except (RuntimeError, AssertionError):  # the loop has ended
            raise self._connection.lost() from None
        try:
            return super().sync(func, *args, **kwargs)
        finally:
            _stop(user)

    async def _wait_for_workers(self, *args: Any, **kwargs: Any) -> None:
        await self._connection.while_it_runs(super()._wait_for_workers(*args, **kwargs))

    async def _get_logs(self, *args: Any, **kwargs: Any) -> Any:
        return await self._connection.while_it_runs(super()._get_logs(*args, **kwargs))

    def get_client(self) -> Client:
        """Return the current client if it is of this cluster, else a new client.

        Returns
        -------
        distributed.Client
            The client.

        Raises
        ------
        HeadUnreachable
            If this object is closed.
        """
        if self.status in (Status.closing, Status.closed):
            raise self._connection.lost()
        return super().get_client()  # type: ignore[no-any-return]

    def _end_loop(self) -> None:
        _stop(self._loop_runner)

    def _end_loop_soon(self, clients: Iterable[Client]) -> None:
        """End the loop from the loop, when these closed clients are deleted.

        Futures of the clients need the loop to raise the reason of the end.
        """
        for client in clients:
            weakref.finalize(client, _stop_soon, client._loop_runner).atexit = False  # noqa: SLF001
        _stop_soon(self._loop_runner)


def _stop(user: LoopRunner) -> None:
    with contextlib.suppress(TimeoutError):  # a thread of the loop may wait for a file server
        user.stop(_LOOP_END_S)


def _stop_soon(user: LoopRunner) -> None:
    # The loop cannot wait for its own end, and may also run the collection that deletes a client.
    threading.Thread(target=_stop, args=(user,), name="loop-end", daemon=True).start()
