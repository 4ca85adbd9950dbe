"""A rank of a world for tests: the rank runs the requested checks, one after the other.

Started by `support.world`, as ``python -m support.member NAME ID SOCKET RANKS FOLDER``.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import functools
import gc
import importlib.util
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

import dask
import psutil
from distributed.utils import offload

from support.ends import DEADLINE, End
from workbench import comm
from workbench.comm import progress_engine
from workbench.mpi.context import RankContext, SpmdThread
from workbench.rank import world

# Everything is large unless a check says otherwise.
SETTINGS = {"workbench.comm.threshold": "1 B"}


def level() -> dict[str, int]:
    """Return what this process holds for its connections, in numbers that come back when they have ended."""
    gc.collect()
    its, us = progress_engine.engine(), comm.membership()
    return {
        "transfers": len(its.outstanding),
        "connections that part": len(its.tasks),
        "plans to poll": int(its.next_poll is not None),
        "tags in use": sum(len(tags.used) for tags in us.tags),
        "bytes leased": comm.receive_pool().statistics().leased,
        "files": psutil.Process().num_fds(),
        "threads": threading.active_count(),
    }


async def back_to(before: dict[str, int], but: Collection[str] = ()) -> None:
    """Wait until this process holds what it held before, but for what may take its time."""
    deadline = time.monotonic() + 0.75 * DEADLINE
    while too_much := {
        what: (before[what], held) for what, held in level().items() if held != before[what] and what not in but
    }:
        if time.monotonic() > deadline:
            raise AssertionError(f"before and after the check: {too_much}; tasks: {asyncio.all_tasks()}")
        await asyncio.sleep(0.01)


@functools.cache
def _load(file: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    # Modules are not garbage, and `level` would look for some among them each time.
    gc.collect()
    gc.freeze()
    return module


class Member:
    """This rank, and the connection to the test that requests its checks."""

    def __init__(self, context: RankContext, folder: Path | None, connection: Connection) -> None:
        self._connection = connection
        self._ears = ThreadPoolExecutor(1)
        self._end = functools.partial(End, context.rank, context.size, folder, self._gather)

    async def _ask(self, *words: Any) -> Any:
        self._connection.send(words)
        return await asyncio.get_running_loop().run_in_executor(self._ears, self._connection.recv)

    async def _gather(self, value: Any = None) -> Any:
        answer = await self._ask("gather", value)
        if answer is None:
            raise RuntimeError("another rank has failed")
        return answer

    async def serve(self) -> bool:
        """Run checks until the last; return whether to finalize MPI."""
        complaints: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        await offload(os.getpid)  # distributed's own thread for this stays
        words = await self._ask("ready", os.getpid())
        while words[0] == "run":
            words = await self._ask("done", await self._run(*words[1:], complaints))
        return bool(words[1])

    async def _run(self, file: str, name: str, complaints: list[Any]) -> str | None:
        complaints.clear()
        try:
            found = getattr(_load(file), name)
            check = getattr(found, "check", found)
            before = level()
            async with asyncio.timeout(DEADLINE):
                with dask.config.set(SETTINGS):
                    await check(self._end())
                if not getattr(check, "leaves_traces", False):
                    await back_to(before)
            if complaints:
                return f"the event loop complained: {complaints}"
        except BaseException:  # noqa: BLE001  (whatever it is, the test is to see it)
            return traceback.format_exc()
        return None


def main(**_: Any) -> None:
    _, _, _, path, ranks, folder = sys.argv
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR2)
    thread = SpmdThread()
    context = thread.submit(world.init_mpi, int(ranks), 0, thread).result(DEADLINE)
    comm.join(context.transport, path)
    there = socket.socket(socket.AF_UNIX)
    there.connect(path)
    connection = Connection(there.detach())
    connection.send(context.rank)
    with contextlib.suppress(EOFError):
        finalize = asyncio.run(Member(context, Path(folder) if folder else None, connection).serve())
        if not comm.leave(DEADLINE / 2):
            raise RuntimeError("transfers are outstanding")
        if finalize:
            from mpi4py import MPI

            thread.submit(MPI.Finalize).result(DEADLINE / 2)
            # Where a process leaves out what C does at its end, the mpiexec of MPICH often says that one was killed.
            return
    os._exit(0)


if __name__ == "__main__":
    main()
