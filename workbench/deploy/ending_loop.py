"""The end of a cluster object: with its cluster or before it, with its event loop, and Dask's requests after an end."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from distributed.core import Status
from distributed.deploy.cluster import Cluster
from distributed.utils import LoopRunner
from tornado.ioloop import PeriodicCallback

from workbench.deploy.stop import await_end, stop
from workbench.errors import HeadUnreachable
from workbench.session import clients, moves

if TYPE_CHECKING:
    from distributed import Client

    from workbench.deploy.connection import HeadConnection
    from workbench.deploy.job import ClusterJob

# Seconds for the end of the thread.
_LOOP_END_S = 1.0
_END_CHECK_INTERVAL_MS = 3000


class EndingLoop(Cluster):
    """A Dask cluster whose `close` ends its event loop, and which is closed when the cluster ends.

    Dask ends the loops of its local clusters only.

    The methods of Dask that ask the scheduler raise the reason of the end of the cluster, not an error of a
    connection.
    """

    _connection: HeadConnection
    _job: ClusterJob
    _ending = False
    """Whether `close` ends the cluster."""
    _moved = False
    """Whether this object is closed, and the cluster continues in another job."""

    on_gone: Callable[[str], object] = staticmethod(lambda _: None)
    """Called on the loop, with the reason, when the cluster has ended and this object is closed."""
    on_moved: Callable[[Any, str], object] = staticmethod(lambda *_: None)
    """Called in a thread, with the object of the cluster in its next job (None: there is none) and a message."""

    def _follow(self) -> None:
        """Connect to the cluster in its next job; called on the loop when this object is closed."""

    def _watch_end(self) -> None:
        """Close this object when the cluster has ended."""
        watch = PeriodicCallback(self._close_if_gone, _END_CHECK_INTERVAL_MS)
        self.periodic_callbacks["cluster-end"] = watch
        watch.start()

    async def _close_if_gone(self) -> None:
        clients.mend(self, self._ending_error)
        if self.status == Status.running and await asyncio.to_thread(self._job.has_moved):
            await self.leave_moving()
        # Dask would try to reach the scheduler, and log errors.
        if self.status == Status.running and await self._connection.gone() and self.status == Status.running:
            end = await self._connection.end_reason()
            if end is None and await asyncio.to_thread(self._job.is_continued):
                await self.leave_moving()
                return
            await self.leave()
            self.on_gone("its head was killed or crashed" if end is None else end.reason)

    async def _ending_error(self) -> HeadUnreachable | None:
        return self._connection.lost() if await self._connection.end_reason() else None

    async def leave(self) -> None:
        """Disconnect from the cluster, which has ended, and close the clients of this object; called on the loop."""
        self._ending = False
        await self.close()
        self._end_loop_soon(await clients.close(self, self._connection.lost()))

    async def leave_moving(self) -> None:
        """Disconnect from the cluster, whose job has ended, and follow the cluster to its next job."""
        if self.status == Status.running:
            moves.begun(self)
            ends, self._ending = self._ending, False
            await self.close()
            self._ending, self._moved = ends, True
            self._end_loop_soon(await clients.close(self, self._job.folder.moves("its job has ended")))
            self._follow()

    async def _close(self) -> None:
        if self.status in (Status.closing, Status.closed):
            return
        before, self.status = self.status, Status.closing
        try:
            if self._ending and self.scheduler_comm is not None:
                with contextlib.suppress(OSError):
                    await self._connection.ask_to_end()
            await super()._close()
            await self._connection.close()
        except BaseException:  # for example at the deadline of `close`, which can be called again
            self.status = before
            raise
        if self._ending:
            await asyncio.to_thread(await_end, self._job)

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
        if self._moved and self._ending:
            stopping = asyncio.to_thread(self._stop_moved)
            return stopping if self.asynchronous else asyncio.run(stopping)
        try:
            closing = super().close(timeout)
        except HeadUnreachable:  # the loop has ended
            closing = None
        if not self.asynchronous:
            self._end_loop()
        return closing

    def _stop_moved(self) -> None:
        self._ending = False
        with contextlib.suppress(FileNotFoundError):
            record = self._job.folder.read()
            if record.id == self._job.record.id:
                stop(record)

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
        """Return the current client if it is of this cluster, else a new client; after a move one of the next job.

        Returns
        -------
        distributed.Client
            The client.

        Raises
        ------
        HeadUnreachable
            If this object is closed.
        """
        if self._moved and (client := moves.followed(moves.wait(moves.begun(self)))) is not None:
            return client
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
