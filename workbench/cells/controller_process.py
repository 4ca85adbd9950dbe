"""The IPython engines of a world and their controller, a child process of the head that the first cell starts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from workbench.cancellation import run_to_end
from workbench.cells import protocol
from workbench.cells.protocol import ANSWER_S, CONTROLLER_S
from workbench.collective.operation import RankRPC, gather_or_cancel
from workbench.deploy import logs
from workbench.deploy.folder import ClusterFolder
from workbench.errors import CollectiveFailed
from workbench.host import debug_log, node_dirs, parent_death
from workbench.host.processes import end

if TYPE_CHECKING:
    from dask.typing import Key

    from workbench.deploy.record import Record

# Seconds for the controller to end.
_END = 5.0


class Engines:
    """The engines of one start of a world.

    Parameters
    ----------
    address
        Address of the head. The controller listens on the same host.
    name
        Index of the world and number of its start, as ``"0-1"``.
    ended
        Called when the controller has ended before `close`.
    """

    def __init__(self, address: str, record: Record, name: str, ended: Callable[[], None]) -> None:
        self._address, self._record, self._name, self._ended = address, record, name, ended
        self._process: asyncio.subprocess.Process | None = None
        self._connections: dict[str, dict[str, Any]] = {}
        self._ready: dict[str, str] = {}
        self._starting = asyncio.Lock()
        self._closed = False
        self.sent_blocks: dict[Key, str] = {}
        """Blocks that cells have received, with their addresses: later cells may write to them, by their names."""
        self.generation = 0
        """Number of the set of communicators. A cell that was ended leaves messages, so the next cell gets new ones."""

    async def ready(self, ranks: RankRPC) -> protocol.Reach:
        """Start the engines on the ranks that have none; return the connection for clients."""
        # Two notebooks may ask simultaneously.
        async with self._starting:
            if self._process is not None and self._process.returncode is not None:
                # The engines of the ranks connect to the next controller, and keep the names of the user.
                self._process, self._ready = None, {}
            new = [rank for rank, address in ranks.ranks.items() if address not in self._ready]
            if new:
                await gather_or_cancel([self._control(), *(ranks.ask(rank, protocol.WARM, ANSWER_S) for rank in new)])
                idents = await gather_or_cancel(
                    ranks.ask(rank, protocol.ENGINE, ANSWER_S, connection=self._connections["engine"]) for rank in new
                )
                self._ready |= {ranks.ranks[rank]: ident for rank, ident in zip(new, idents, strict=True)}
        return {
            "connection": self._connections["client"],
            "idents": {rank: self._ready[address] for rank, address in ranks.ranks.items()},
        }

    def forget(self, address: str) -> None:
        """Start the engine of a rank again with the next cell."""
        self._ready.pop(address, None)

    async def _control(self) -> None:
        """Start the controller, unless it was started."""
        if self._process is not None:
            return
        folder = node_dirs.spill(self._record.id) / f"controller-{self._name}"
        address = self._address.partition("://")[2].rpartition(":")[0]
        program = [
            sys.executable,
            "-P",
            "-m",
            "workbench.cells.controller",
            "--address",
            address,
            "--folder",
            str(folder),
        ]
        tied = [*parent_death.command_line(str(folder)), *program]
        path = ClusterFolder.of(self._record).logs / "controller.log"
        with logs.append(path) as log:
            self._process = await asyncio.create_subprocess_exec(
                *tied,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        debug_log.started(self._process.pid, "the controller of the cells of world %s", self._name)
        line = b""
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CONTROLLER_S):
                    line = await self._process.stdout.readline()  # type: ignore[union-attr]
        finally:
            if not line:  # also if a rank has failed meanwhile: the next cell starts another controller
                process, self._process = self._process, None
                await run_to_end(self._end(process))
        if not line:
            raise CollectiveFailed(f"the controller of the cells did not start. See {path}.")
        self._connections = json.loads(line)
        self._watching = asyncio.ensure_future(self._watch())

    async def _watch(self) -> None:
        await self._process.wait()  # type: ignore[union-attr]
        if not self._closed:
            self._ended()

    async def close(self) -> None:
        """End the controller. The engines end with their ranks."""
        self._closed = True
        if self._process is not None:
            await self._end(self._process)

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        await end(process, _END, f"the controller of the cells of world {self._name}")
