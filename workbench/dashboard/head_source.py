"""Numbers of a cluster from its head, over its TLS."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np

from workbench.config import __version__
from workbench.deploy import registry
from workbench.deploy.connection import HeadConnection
from workbench.deploy.start import ClusterStarter
from workbench.errors import ClusterNotFound, HeadUnreachable
from workbench.metrics.schema import KINDS
from workbench.metrics.update import Update

if TYPE_CHECKING:
    from numpy.typing import NDArray

_Answer = TypeVar("_Answer")
# Seconds for an answer, and for the first one, which has ten minutes of all ranks in it.
_ANSWER_TIMEOUT_S, _FIRST_ANSWER_TIMEOUT_S = 5.0, 60.0


class HeadSource:
    """A `workbench.dashboard.source.Source` of a running cluster of this user; an asynchronous context.

    Parameters
    ----------
    name
        The cluster.

    Raises
    ------
    ClusterNotFound
        If no cluster of that name runs; on entry `HeadUnreachable` if its head does not answer.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._job = ClusterStarter(registry.running(name), renamable=False, attached=True)
        self.connection = HeadConnection(self._job)
        """The connection to the head."""

    async def __aenter__(self) -> Self:
        await self.connection.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.connection.close()

    async def ask(self, since: int) -> Update:
        """As `Source.ask`."""
        return await self._request(
            Update.unpack, "workbench_metrics", _ANSWER_TIMEOUT_S if since else _FIRST_ANSWER_TIMEOUT_S, since=since
        )

    async def pair(self, source: int, target: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """As `Source.pair`."""
        return await self._request(
            _unpack_pair, "workbench_metrics_pair", _ANSWER_TIMEOUT_S, source=source, target=target
        )

    async def _request(
        self, unpack: Callable[[Any], _Answer], operation: str, patience: float, **arguments: int
    ) -> _Answer:
        try:
            return unpack(await self.connection.call(operation, patience, **arguments))
        except HeadUnreachable as error:
            if not await asyncio.to_thread(self._job.runs):
                raise await asyncio.to_thread(self._ended) from error
            # The page has words of its own for a connection that is lost.
            raise (error.__cause__ or error) from None
        except (ValueError, KeyError, TypeError) as error:
            # A ValueError is Dask's answer of a head that does not know the question, too.
            raise HeadUnreachable(
                f"cluster {self._name!r} was started by another version of workbench than this one, {__version__}, "
                f"and tells its numbers in another way or not at all: stop it and start it again ({error})"
            ) from error

    def _ended(self) -> ClusterNotFound:
        try:
            record = registry.running(self._name)
        except ClusterNotFound as error:
            return error
        # Another one has its name by now.
        return ClusterNotFound(f"cluster {record.name!r} has ended, and another one of that name was started since")


def _unpack_pair(packed: tuple[bytes, bytes]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    times, rates = packed
    return np.frombuffer(times), np.frombuffer(rates, np.float32).reshape(-1, len(KINDS)).astype(np.float64)
