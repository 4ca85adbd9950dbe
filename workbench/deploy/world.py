"""One MPI world of a cluster as its head knows it: who of its ranks is there."""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from workbench.deploy import logs
from workbench.deploy.record import Record
from workbench.launch.mpi_library import MPI


class MPIWorld(abc.ABC):
    """One world of a cluster, over all its starts: who of its ranks is there."""

    def __init__(self, record: Record, mpi: MPI, index: int, ranks: int) -> None:
        self.record, self.mpi, self.index, self.ranks = record, mpi, index, ranks
        self.starts = 0
        self.present: dict[int, dict[str, Any]] = {}
        """What each rank that is there told of itself, by rank."""
        self.lost: dict[int, dict[str, Any]] = {}
        """The same of the ranks that have died since the world was ready."""
        self.ready = False
        """Whether all ranks of the present start have been there at one time."""
        self.stopping = False
        """Whether its end was asked for."""
        self.broken: dict[int, str] = {}
        """By rank why it does not come back from a call; until then no other can be made there."""
        self.restart_asked = False
        """Whether it is to be started again after that end."""
        self.job: str | None = None
        """Its job, if it has one of its own."""
        self._changed = asyncio.Event()

    @property
    def state(self) -> str:
        """As of `workbench.deploy.record.World`."""
        if not self.ready:
            return "starting" if self.starts <= 1 else "restarting"
        return "degraded" if self.lost else "ready"

    @property
    def log(self) -> Path:
        """File with the output of ``mpiexec`` and of ranks that failed while starting."""
        return logs.of_world(self.record, self.index)

    @abc.abstractmethod
    async def start(self, timeout: float, address: str) -> None:
        """Start the ranks, which give themselves `timeout` seconds to register with the scheduler at `address`.

        Raises
        ------
        WorkbenchError
            If that cannot even be tried.
        """

    @abc.abstractmethod
    async def exited(self) -> str:
        """Wait for the end of all ranks and return in words how it came."""

    @abc.abstractmethod
    async def stop(self, ask: Callable[[], Awaitable[None]]) -> None:
        """End the world: ask its ranks, which finalise MPI together, then end what is left of it.

        Parameters
        ----------
        ask
            Sends the ranks the request to end.
        """

    def begin(self) -> None:
        """Note that a new start begins."""
        self.present, self.lost, self.ready, self.stopping, self.broken = {}, {}, False, False, {}
        self._changed = asyncio.Event()
        self.starts += 1

    async def complete(self) -> None:
        """Wait until all ranks are there."""
        while not self.ready:
            await self._changed.wait()

    def joined(self, rank: int, told: dict[str, Any]) -> None:
        """Note that the worker of a rank has registered."""
        self.present[rank] = told
        if len(self.present) == self.ranks:
            self.ready = True
            self._changed.set()

    def left(self, rank: int) -> dict[str, Any]:
        """Note that the worker of a rank is gone; return what the rank had told of itself."""
        told = self.present.pop(rank, {})
        if self.ready and not self.stopping:
            self.lost[rank] = told
        return told

    def missing(self) -> list[int]:
        """Return the ranks that are not there."""
        return sorted(set(range(self.ranks)) - set(self.present))


class Worlds(Protocol):
    """The worlds of a cluster, as calls on their ranks need them."""

    def __iter__(self) -> Iterator[MPIWorld]:
        """Return them in the order of their indices."""

    def get(self, index: int) -> MPIWorld | None:
        """Return a world by its index, or None."""

    def addresses(self, world: MPIWorld) -> list[str]:
        """Return the addresses of the ranks of a world that are there, in rank order."""

    def members(self, world: MPIWorld) -> dict[int, str]:
        """Return the addresses of the ranks of a world that are there, by rank."""
