"""``python -m workbench.head NAME``: the first process of a cluster's job."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import importlib
import logging
import os
import signal
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from workbench import config
from workbench.deploy import certificates, ended, registry
from workbench.deploy.job_spec import template_modules
from workbench.deploy.registry import Record, await_record
from workbench.errors import StartError, WorkbenchError
from workbench.files import node_dirs
from workbench.fork import stub
from workbench.fork.template import fork_template
from workbench.head.world_process import WorldProcess
from workbench.launch import mpi_library, network
from workbench.launch.allocation import current_allocation, peers
from workbench.launch.launchers import launcher
from workbench.log import debug_log
from workbench.processes import open_files
from workbench.processes.process_id import ProcessId


def main() -> int:
    """Run the cluster NAME to its end; return the exit code."""
    parser = argparse.ArgumentParser(prog="workbench.head")
    parser.add_argument("name")
    parser.add_argument("id", nargs="?", help="of the very cluster that is meant; default: whichever has the name")
    # A shell starts background jobs with SIGINT ignored, and ranks would inherit that: no cell could be interrupted.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Sent ahead of the end of a walltime: until the head serves, it would end it without a word.
    signal.signal(signal.SIGUSR1, lambda *_: None)
    logging.basicConfig(format="%(asctime)s %(name)s %(levelname)s %(message)s", level=logging.INFO)
    arguments = parser.parse_args()
    times = {"the head begins": time.time()}
    # First of all: what it starts has the same limit.
    open_files.allow_many()
    # The ranks of this node are forked from here, which takes that nothing has started threads.
    os.environ |= stub.ONE_THREAD
    # The import takes long, and looking for MPI waits for another process: side by side, not one after the other.
    # mpiexec is started from this thread, since its life is tied to the thread that starts it.
    with ThreadPoolExecutor() as side:
        library, importing = side.submit(mpi_library.loaded_library), side.submit(_import, "distributed")
        record = await_record(arguments.name, arguments.id)
        if record.state != "submitted":
            return _refuse(record)
        record = record.replace(process=ProcessId.here(), state="starting", message="starting the MPI world")
        listener = None
        try:
            open_files.check_ranks(record.ranks)
            if launcher(record.scheduler).batch and (around := current_allocation()):
                # It may have waited in its queue for days: the time to be ready counts from now.
                record = record.replace(job=around.job, deadline=time.time() + record.ready_within)
                # If it is killed the next job on this node removes what it leaves.
                node_dirs.acquire_node(record.id, "world-0")
            address = network.address(record.interface, peers=peers() if record.spread else None)
            registry.write(record)
            found = mpi_library.mpiexec_of(library.result(), record.mpi)
            record = record.replace(mpi=str(found))
            if record.template:
                listener = stub.listen(str(node_dirs.sockets(record.id)))
            world = WorldProcess(record, found, index=0, ranks=record.ranks)
            world.spawn(record.deadline - time.time())
            times["mpiexec is started"] = time.time()
        except (WorkbenchError, OSError) as error:
            return _fail(record, error)
        importing.result()
    times["the head has imported Dask"] = time.time()
    if listener is not None:
        # Before this process has threads.
        fork_template(socket.socket(fileno=listener.detach()), template_modules(record))
    _import("workbench.head.head")
    return asyncio.run(_serve(record, world, address, times))


def _import(module: str) -> None:
    # Modules are not garbage: looking for some among them is a tenth of the time that their import takes.
    gc.disable()
    importlib.import_module(module)
    gc.freeze()
    gc.enable()


async def _serve(record: Record, world: WorldProcess, address: str, times: dict[str, float]) -> int:
    import dask

    from workbench.head.head import Head
    from workbench.head.scheduler import SETTINGS

    dask.config.set(SETTINGS | config.quiet_dask())
    return await Head(record, world, address, times=times).run()


def _refuse(record: Record) -> int:
    """End a job that has run before: an administrator, or a preemption, has put it back into the queue."""
    message = "its job was put back into the queue after it had run, and its ranks are gone: start a new cluster"
    if record.address is None:
        return _fail(record, StartError(message))  # somebody waits for it to start
    logging.getLogger("workbench.head").error(message)
    ended.note(record, ended.FAILED, message)
    # The head of then was killed before it could do so.
    registry.remove(record)
    return 1


def _fail(record: Record, error: WorkbenchError | OSError) -> int:
    message, failure = str(error), error.fields() if isinstance(error, WorkbenchError) else {}
    logging.getLogger("workbench.head").error(message)
    with contextlib.suppress(OSError):  # a full disk, most likely: the log says so, if anything does
        registry.write(record.replace(state="failed", message=message, failure=failure))
    certificates.remove(record.folder)
    return 1


if __name__ == "__main__":
    sys.exit(debug_log.living("the head", main))
