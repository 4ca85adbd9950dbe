"""``python -m workbench.head.keeper NAME ID WORLD RANKS``: the first process of a job with a later world."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys

from workbench.deploy.record import Record
from workbench.deploy.registry import await_record
from workbench.errors import WorkbenchError
from workbench.head.world_process import WorldProcess
from workbench.host import debug_log, node_dirs, processes, stub
from workbench.launch import mpi_library

logger = logging.getLogger("workbench.keeper")


def main() -> int:
    """Run the world WORLD of cluster NAME until its end; return the exit code."""
    parser = argparse.ArgumentParser(prog="workbench.head.keeper")
    parser.add_argument("name")
    parser.add_argument("id")
    parser.add_argument("world", type=int)
    parser.add_argument("ranks", type=int)
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # An ancestor may have ignored SIGCHLD, and the kernel would not report how child processes end.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    logging.basicConfig(format="%(asctime)s %(name)s %(levelname)s %(message)s", level=logging.INFO)
    processes.allow_many_files()
    try:
        record = await_record(arguments.name, arguments.id)
        os.environ[stub.CLUSTER] = record.id
        world = WorldProcess(record, mpi_library.find(), arguments.world, arguments.ranks)
        return asyncio.run(_keep(record, world))
    except WorkbenchError as error:
        logger.error("%s", error)  # noqa: TRY400  (the message is complete without a traceback)
        return 1


async def _keep(record: Record, world: WorldProcess) -> int:
    loop, signaled = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, signaled.set)
    # Slurm sends SIGUSR1 before the end of the walltime. The job of world 0 ends first, and the head handles that.
    loop.add_signal_handler(signal.SIGUSR1, logger.info, "SIGUSR1: the end of the walltime is near")
    if not record.process.is_local:
        node_dirs.acquire_node(record.id, f"world-{world.index}")
    await world.start(record.ready_within, str(record.address))
    ended = asyncio.ensure_future(world.exited())
    others = [asyncio.ensure_future(signaled.wait()), asyncio.ensure_future(world.folder.wait_until_lost())]
    await asyncio.wait({ended, *others}, return_when=asyncio.FIRST_COMPLETED)
    for other in others:
        other.cancel()
    if not ended.done():
        # The ranks are connected to the head, so the keeper cannot send them a request.
        await world.stop(_no_request)
    logger.info("%s", await ended)
    if not record.process.is_local:
        node_dirs.release_node(record.id)
    return 0


async def _no_request() -> None:
    pass


if __name__ == "__main__":
    sys.exit(debug_log.living("the keeper of a world", main))
