"""The Dask clients of a cluster that has ended.

Dask would try to reach the scheduler for 30 s, log errors, and then cancel the futures for an unknown reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distributed import Client
    from distributed.deploy.cluster import Cluster


async def close(cluster: Cluster, ending: Exception) -> None:
    """Let the futures of all clients of a cluster fail with `ending`, and close the clients; called on their loop."""
    from distributed import Client  # the magics import this module, and `%load_ext workbench` loads no Dask

    for client in list(Client._instances):  # noqa: SLF001  (a cluster does not know its clients)
        if client.cluster is cluster:
            _fail_futures(client, ending)
            with without_cancellations():
                await client._close(fast=True)  # noqa: SLF001  (`close` stops a loop)
            _fail_futures(client, ending)  # those of a thread that has submitted them meanwhile


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
