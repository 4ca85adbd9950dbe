"""The Dask clients of a cluster that has ended.

Dask would cancel the futures for an unknown reason, try to reach the scheduler for 30 s, and log errors.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING

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


def ask_first(cluster: Cluster, ending: Callable[[], Awaitable[Exception | None]]) -> None:
    """Let the futures of all clients of a cluster fail with the result of `ending`, if any, when a connection breaks.

    Dask cancels the futures before the end of the cluster is noticed otherwise.
    """
    for client in _clients(cluster):
        if "_reconnect" not in vars(client):
            vars(client)["_reconnect"] = functools.partial(_reconnect, client, client._reconnect, ending)  # noqa: SLF001


async def _reconnect(
    client: Client, reconnect: Callable[[], Awaitable[None]], ending: Callable[[], Awaitable[Exception | None]]
) -> None:
    if (error := await ending()) is not None:
        _fail_futures(client, error)
    if client.status == "connecting":  # not closed meanwhile
        await reconnect()


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
