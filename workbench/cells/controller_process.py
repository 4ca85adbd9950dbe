"""The IPython engines of a world, and their controller: a child of the head, started for the first cell."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from typing import TYPE_CHECKING, Any

from workbench.cells import protocol
from workbench.collective.rank_rpc import RankRPC, gather_or_cancel
from workbench.errors import CollectiveFailed
from workbench.files import node_dirs
from workbench.hints import Command
from workbench.log import debug_log
from workbench.processes import parent_death
from workbench.processes.ending import end

if TYPE_CHECKING:
    from dask.typing import Key

    from workbench.deploy.registry import Record

# Seconds for the controller to say where it listens, and for a rank to get ready.
_START = 30.0
_ANSWER = 45.0
# Seconds for the controller to end.
_END = 5.0


async def ask(asking: RankRPC, rank: int, operation: str, **told: Any) -> Any:
    """Ask a rank for a step on the way to a cell, with a deadline, and return its answer."""
    try:
        async with asyncio.timeout(_ANSWER):
            return await asking.ask(rank, operation, **told)
    except TimeoutError as error:
        raise CollectiveFailed(
            f"rank {rank} did not get ready for a cell within {_ANSWER:.0f} s.",
            hint=("See its log: ", Command("logs", f"--rank {rank}")),
        ) from error


class Engines:
    """The engines of one start of a world, which `name` tells from all others: ``"0-1"``.

    The controller listens on the host of `address`, the head's.
    """

    def __init__(self, address: str, record: Record, name: str) -> None:
        self._address, self._record, self._name = address, record, name
        self._process: asyncio.subprocess.Process | None = None
        self._told: dict[str, dict[str, Any]] = {}
        self._ready: dict[str, str] = {}
        self._starting = asyncio.Lock()
        self.given: dict[Key, str] = {}
        """Blocks that cells were given, and their ranks: they stay in the namespaces, where later cells may write."""
        self.generation = 0
        """Of the communicators, made anew after a cell that broke off: of old ones messages may be on their way."""

    async def ready(self, ranks: RankRPC) -> protocol.Reach:
        """Have engines run on all ranks of the world, whoever asks first; return how clients connect to them."""
        # Two notebooks may ask at once.
        async with self._starting:
            new = [rank for rank, address in ranks.ranks.items() if address not in self._ready]
            if new:
                await gather_or_cancel([self._control(), *(ask(ranks, rank, protocol.WARM) for rank in new)])
                told = await gather_or_cancel(
                    ask(ranks, rank, protocol.ENGINE, connection=self._told["engine"]) for rank in new
                )
                self._ready |= {ranks.ranks[rank]: ident for rank, ident in zip(new, told, strict=True)}
            if self._process is None or self._process.returncode is not None:
                raise CollectiveFailed(
                    f"the controller of the cells has ended; see {self._record.logs / 'controller.log'}.",
                    hint=("Start the ranks again: ", Command("restart")),
                )
        idents = {rank: self._ready[address] for rank, address in ranks.ranks.items()}
        return {"connection": self._told["client"], "idents": idents}

    async def _control(self) -> None:
        """Start the controller, unless it runs."""
        if self._process is not None:
            return
        folder = node_dirs.spill(self._record.id) / f"controller-{self._name}"
        address = self._address.partition("://")[2].rpartition(":")[0]
        program = [sys.executable, "-m", "workbench.cells.controller", "--address", address, "--folder", str(folder)]
        tied = [*parent_death.command_line(str(folder)), *program]
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
        debug_log.started(self._process.pid, "the controller of the cells of world %s", self._name)
        line = b""
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_START):
                    line = await self._process.stdout.readline()  # type: ignore[union-attr]
        finally:
            if not line:  # also where a rank has failed meanwhile: the next cell is to start another one
                await self.close()
                self._process = None
        if not line:
            raise CollectiveFailed(f"the controller of the cells did not start; see {path}")
        self._told = json.loads(line)

    async def close(self) -> None:
        """End the controller; the engines end with their ranks."""
        process = self._process
        if process is None:
            return
        await end(process, _END, f"the controller of the cells of world {self._name}")
