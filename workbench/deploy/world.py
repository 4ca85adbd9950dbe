"""The head's view of one MPI world of a cluster."""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

from workbench.deploy import logs
from workbench.deploy.folder import ClusterFolder
from workbench.deploy.record import Record
from workbench.launch.mpi_library import MPI


class MPIWorld(abc.ABC):
    """One world of a cluster over all its starts, with its registered ranks."""

    def __init__(self, record: Record, mpi: MPI, index: int, ranks: int) -> None:
        self.record, self.mpi, self.index, self.ranks = record, mpi, index, ranks
        self.folder = ClusterFolder.of(record)
        """The folder of the cluster."""
        self.starts = 0
        self.present: dict[int, dict[str, Any]] = {}
        """Facts of each registered rank, by rank."""
        self.lost: dict[int, dict[str, Any]] = {}
        """Facts of the ranks that were lost since the world was ready."""
        self.ready = False
        """Whether all ranks of the current start were registered at one time."""
        self.stopping = False
        """Whether the end of the world was requested."""
        self.given_up = False
        """Whether the head ends this start of the world, because its launcher does not after the loss of a rank."""
        self.broken: dict[int, str] = {}
        """Message by rank about ranks that have not returned from a call; they prevent the next call there."""
        self.restart_requested = False
        """Whether the world must start again after its end."""
        self.waiting = ""
        """What the start waits for, if the world has a job that is queued."""
        self.job: str | None = None
        """Id of the job, if the world has a separate one."""
        self._changed = asyncio.Event()

    @property
    def state(self) -> str:
        """As in `workbench.deploy.record.World`."""
        if not self.ready:
            return "starting" if self.starts <= 1 else "restarting"
        return "degraded" if self.lost else "ready"

    @property
    def killed(self) -> bool:
        """Whether a signal has ended the launcher of this start, which takes its ranks along."""
        return False

    @property
    def log(self) -> Path:
        """File with the output of ``mpiexec`` and of ranks that failed while starting."""
        return logs.of_world(self.folder.logs, self.index)

    @abc.abstractmethod
    async def start(self, timeout: float, address: str) -> None:
        """Start the ranks, which must register with the scheduler at `address` within `timeout` seconds.

        Raises WorkbenchError if they cannot be started.
        """

    @abc.abstractmethod
    async def exited(self) -> str:
        """Wait for the end of all ranks and return a message about the end."""

    @abc.abstractmethod
    async def stop(self, request_end: Callable[[], Awaitable[None]]) -> None:
        """End the world: call `request_end`, after which the ranks finalize MPI together, then end the rest."""

    def begin(self) -> None:
        """Reset the state for a new start."""
        self.present, self.lost, self.broken = {}, {}, {}
        self.ready = self.stopping = self.given_up = False
        self._changed = asyncio.Event()
        self.starts += 1

    async def complete(self) -> None:
        """Wait until all ranks have registered."""
        while not self.ready:
            await self._changed.wait()

    def joined(self, rank: int, facts: dict[str, Any]) -> None:
        """Record that a rank has registered."""
        self.present[rank] = facts
        if len(self.present) == self.ranks:
            self.ready = True
            self._changed.set()

    def left(self, rank: int) -> dict[str, Any]:
        """Record that a rank has left; return its facts."""
        facts = self.present.pop(rank, {})
        if self.ready and not self.stopping:
            self.lost[rank] = facts
        return facts

    def missing(self) -> list[int]:
        """Return the ranks that have not registered."""
        return sorted(set(range(self.ranks)) - set(self.present))


class CurrentWorld(Protocol):
    """The interface to the world of a cluster for SPMD calls and cells."""

    @property
    def world(self) -> MPIWorld:
        """The world, which a move replaces by another one."""

    def members(self) -> dict[int, str]:
        """Return the addresses of its registered ranks, by rank."""
