"""Metrics of a cluster from its head, over the cluster's TLS."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np

from workbench import __version__
from workbench.deploy import registry
from workbench.deploy.connection import HeadConnection
from workbench.deploy.job import ClusterJob
from workbench.errors import ClusterNotFound, HeadUnreachable
from workbench.metrics.schema import KINDS
from workbench.metrics.update import Update

if TYPE_CHECKING:
    from numpy.typing import NDArray

_Answer = TypeVar("_Answer")
# The first answer contains ten minutes of all ranks.
_ANSWER_TIMEOUT_S, _FIRST_ANSWER_TIMEOUT_S = 5.0, 60.0


class HeadSource:
    """A `workbench.lab.dashboard.source.Source` of a running cluster; an asynchronous context.

    Parameters
    ----------
    name
        Name of the cluster.

    Raises
    ------
    ClusterNotFound
        If no cluster of that name runs; on entry `HeadUnreachable` if its head does not answer.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._job = ClusterJob(registry.running(name))
        self.connection = HeadConnection(self._job)
        """The connection to the head."""

    async def __aenter__(self) -> Self:
        await self.connection.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.connection.close()

    async def ask(self, since: int) -> Update:
        """See `Source.ask`."""
        return await self._request(
            Update.unpack, "workbench_metrics", _ANSWER_TIMEOUT_S if since else _FIRST_ANSWER_TIMEOUT_S, since=since
        )

    async def pair(self, source: int, target: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """See `Source.pair`."""
        return await self._request(
            _unpack_pair, "workbench_metrics_pair", _ANSWER_TIMEOUT_S, source=source, target=target
        )

    async def _request(
        self, unpack: Callable[[Any], _Answer], operation: str, timeout: float, **arguments: int
    ) -> _Answer:
        try:
            return unpack(await self.connection.call(operation, timeout, **arguments))
        except HeadUnreachable as error:
            if not await asyncio.to_thread(self._job.runs):
                raise await asyncio.to_thread(self._ended) from error
            # The page has its own text for a lost connection.
            raise (error.__cause__ or error) from None
        except (ValueError, KeyError, TypeError) as error:
            # Dask also raises ValueError when the head does not know the operation.
            raise HeadUnreachable(
                f"Cluster {self._name!r} was started by another version of workbench than {__version__}, and its "
                f"metrics cannot be read ({error}). Stop the cluster and start it again."
            ) from error

    def _ended(self) -> ClusterNotFound:
        try:
            record = registry.running(self._name)
        except ClusterNotFound as error:
            return error
        # Another cluster has the name now.
        return ClusterNotFound(
            f"Cluster {record.name!r} has ended, and another cluster of that name was started since."
        )


def _unpack_pair(packed: tuple[bytes, bytes]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    times, rates = packed
    return np.frombuffer(times), np.frombuffer(rates, np.float32).reshape(-1, len(KINDS)).astype(np.float64)
