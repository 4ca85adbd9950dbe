"""The IPython engines of a world, and their controller: a child of the head, started for the first cell."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from workbench import errors, scratch, tether
from workbench.errors import CollectiveFailed, RankLost

if TYPE_CHECKING:
    from distributed import Scheduler

    from workbench.registry import Record

# Seconds for the controller to say where it listens, and for a rank to get ready.
_START = 30.0
_ANSWER = 45.0
# Seconds for the controller to end.
_END = 5.0


async def ask(operation: Callable[..., Awaitable[Any]], who: str, **told: Any) -> Any:
    """Ask a rank, and return its answer.

    Raises
    ------
    RankLost
        If it goes meanwhile.
    WorkbenchError
        If it refuses.
    """
    try:
        async with asyncio.timeout(_ANSWER):
            answer = await operation(**told)
    except TimeoutError as error:
        raise CollectiveFailed(
            f"{who} did not get ready for a cell within {_ANSWER:.0f} s; see its log: %mpicluster logs"
        ) from error
    except OSError as error:
        raise RankLost(f"{who} was lost while it got ready for a cell") from error
    if "refused" in answer:
        raise getattr(errors, answer["refused"])(answer["why"])
    return answer["answer"]


class Engines:
    """The engines of one start of a world.

    Parameters
    ----------
    scheduler
        What the ranks are reached by.
    record
        The cluster's.
    name
        Of the world's start, different from all others: ``"0-1"``.
    """

    def __init__(self, scheduler: Scheduler, record: Record, name: str) -> None:
        self._scheduler, self._record, self._name = scheduler, record, name
        self._process: asyncio.subprocess.Process | None = None
        self._told: dict[str, dict[str, Any]] = {}
        self._ready: dict[str, str] = {}
        self._starting = asyncio.Lock()

    async def ready(self, ranks: dict[int, str]) -> dict[str, Any]:
        """Have engines run on the ranks, whoever asks first; return how clients connect to them.

        Parameters
        ----------
        ranks
            Addresses of the ranks' workers.

        Raises
        ------
        CollectiveFailed
            If the controller or an engine cannot be started, or has ended.
        """
        # Two notebooks may ask at once.
        async with self._starting:
            new = {rank: address for rank, address in ranks.items() if address not in self._ready}
            if new:
                async with asyncio.TaskGroup() as group:
                    for rank, address in new.items():
                        group.create_task(ask(self._scheduler.rpc(address).workbench_cells_warm, f"rank {rank}"))
                    group.create_task(self._control())
                async with asyncio.TaskGroup() as group:
                    for rank, address in new.items():
                        group.create_task(self._become(rank, address))
            if self._process is None or self._process.returncode is not None:
                raise CollectiveFailed(
                    f"the controller of the cells has ended; see {self._record.logs / 'controller.log'}. "
                    "Start the ranks again: %mpicluster restart"
                )
        return {"connection": self._told["client"], "idents": {rank: self._ready[a] for rank, a in ranks.items()}}

    async def _become(self, rank: int, address: str) -> None:
        start = self._scheduler.rpc(address).workbench_cells_engine
        self._ready[address] = await ask(start, f"rank {rank}", connection=self._told["engine"])

    async def _control(self) -> None:
        """Start the controller, unless it runs."""
        if self._process is not None:
            return
        folder = scratch.spill(self._record.id) / f"controller-{self._name}"
        address = self._scheduler.address.partition("://")[2].rpartition(":")[0]
        program = [sys.executable, "-m", "workbench.head.controller", "--address", address, "--folder", str(folder)]
        tied = [sys.executable, "-I", "-S", tether.__file__, str(os.getpid()), str(folder), *program]
        path = self._record.logs / "controller.log"
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            self._process = await asyncio.create_subprocess_exec(
                *tied,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        finally:
            os.close(log)
        line = b""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_START):
                line = await self._process.stdout.readline()  # type: ignore[union-attr]
        if not line:
            await self.close()
            raise CollectiveFailed(f"the controller of the cells did not start; see {path}")
        self._told = json.loads(line)

    async def close(self) -> None:
        """End the controller; the engines end with their ranks."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(_END):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
