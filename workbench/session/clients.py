"""The Dask clients of a cluster: their end with the cluster, and interrupts.

After the end of the cluster, Dask would cancel the futures for an unknown reason, try to reach the scheduler for 30 s,
and log errors.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distributed import Client
    from distributed.deploy.cluster import Cluster


async def close(cluster: Cluster, ending: Exception) -> list[Client]:
    """Let the futures of all clients of a cluster fail with `ending`, close the clients, and return them.

    Called on their loop, which they still use.
    """
    clients = _clients(cluster)
    for client in clients:
        _fail_futures(client, ending)
        with without_cancellations():
            await client._close(fast=True)  # noqa: SLF001  (`close` stops a loop)
        _fail_futures(client, ending)  # those of a thread that has submitted them meanwhile
    return clients


def mend(cluster: Cluster, ending: Callable[[], Awaitable[Exception | None]]) -> None:
    """Replace two steps of all clients of a cluster, which Dask takes without regard to ends and interrupts.

    When a connection breaks, the futures fail with the result of `ending`, if any: Dask cancels the futures before the
    end of the cluster is noticed. Ctrl-C before a gather has begun does not cancel all later
    ones, nor those of other threads.
    """
    for client in _clients(cluster):
        if "_reconnect" not in vars(client):
            reconnect, gather = client._reconnect, client._gather  # noqa: SLF001
            vars(client)["_reconnect"] = functools.partial(_reconnect, client, reconnect, ending)
            vars(client)["_gather"] = functools.partial(_gather, client, gather)


async def _reconnect(
    client: Client, reconnect: Callable[[], Awaitable[None]], ending: Callable[[], Awaitable[Exception | None]]
) -> None:
    if (error := await ending()) is not None:
        _fail_futures(client, error)
    if client.status == "connecting":  # not closed meanwhile
        with without_cancellations():  # the task logs its end after `close`
            await reconnect()


async def _gather(client: Any, gather: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any) -> Any:
    try:
        return await gather(*args, **kwargs)
    except asyncio.CancelledError:
        # The next gather would wait for this future.
        if client._gather_future is not None and client._gather_future.cancelled():  # noqa: SLF001
            client._gather_keys = client._gather_future = None  # noqa: SLF001
        if asyncio.current_task().cancelling():  # type: ignore[union-attr]
            raise
    # The gather of another thread was canceled, and this one with it.
    return await gather(*args, **kwargs)


def _clients(cluster: Cluster) -> list[Client]:
    from distributed import Client  # the magics import this module, and `%load_ext workbench` loads no Dask

    # A cluster does not know its clients.
    return [client for client in list(Client._instances) if client.cluster is cluster]  # noqa: SLF001


def _fail_futures(client: Client, ending: Exception) -> None:
    # Dask cancels the futures that a closed client still has, and other threads may submit now.
    while client.futures:
        _, state = client.futures.popitem()
        if state.status != "error":
            state.set_error(ending, None)


@contextlib.contextmanager
def without_cancellations() -> Iterator[None]:
    """Log no error with a traceback when a client stops trying to reach a scheduler that has ended."""
    logger = logging.getLogger("distributed.client")
    logger.addFilter(_no_cancellation)
    try:
        yield
    finally:
        logger.removeFilter(_no_cancellation)


def _no_cancellation(record: logging.LogRecord) -> bool:
    return record.exc_info is None or not isinstance(record.exc_info[1], asyncio.CancelledError)
