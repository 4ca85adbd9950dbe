"""``python -m workbench.head NAME``: the head, the first process of a cluster's job."""

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
from workbench.comm import certificates
from workbench.deploy import ended
from workbench.deploy.folder import ClusterFolder
from workbench.deploy.job_spec import template_modules
from workbench.deploy.record import Record
from workbench.deploy.registry import await_record
from workbench.errors import StartError, WorkbenchError
from workbench.fork.become import append_directory
from workbench.fork.template import fork_template
from workbench.head.world_process import WorldProcess
from workbench.host import debug_log, network, node_dirs, output, processes, stub
from workbench.host.processes import ProcessId
from workbench.launch import mpi_library
from workbench.launch.allocation import current_allocation, peers
from workbench.launch.launchers import launcher


def main() -> int:
    """Run the cluster NAME until its end; return the exit code."""
    output.keep_on()
    parser = argparse.ArgumentParser(prog="workbench.head")
    parser.add_argument("name")
    parser.add_argument("id", nargs="?", help="id of the cluster; default: the cluster with this name")
    parser.add_argument("turn", nargs="?", type=int, default=0, help="number of jobs of the cluster before this one")
    # A shell starts background jobs with SIGINT ignored. Ranks would inherit this, and cells could not be interrupted.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # An ancestor may have ignored SIGCHLD, and the kernel would not report how child processes end.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # Slurm sends SIGUSR1 before the end of a walltime, which would kill a head that is still starting.
    signal.signal(signal.SIGUSR1, lambda *_: None)
    logging.basicConfig(format="%(asctime)s %(name)s %(levelname)s %(message)s", level=logging.INFO)
    arguments = parser.parse_args()
    times = {"the head begins": time.time()}
    # Child processes inherit the limit, so it is raised first.
    processes.allow_many_files()
    # The ranks of this node are forked from this process, so no library may start threads.
    os.environ |= stub.ONE_THREAD
    # The import takes long, and the detection of MPI waits for another process, so both run at the same time.
    # mpiexec is started from this thread, because mpiexec is tied to the thread that starts it.
    with ThreadPoolExecutor() as pool:
        library, importing = pool.submit(mpi_library.loaded_library), pool.submit(_import, "distributed")
        found = await_record(arguments.name, arguments.id)
        if (record := found.in_job(arguments.turn)) is None or (record is not found and found.process.alive()):
            return _refuse(found, arguments.turn)
        if record is not found:
            node_dirs.remove(record.id)  # of a head that was killed
        os.environ[stub.CLUSTER] = record.id
        record = record.replace(process=ProcessId.here(), state="starting", message="starting the MPI world")
        listener = None
        try:
            processes.check_open_files(record.ranks)
            if launcher(record.scheduler).batch and (allocation := current_allocation()):
                # The job may have waited in the queue for days, so the time for the start counts from now.
                record = record.replace(job=allocation.job, deadline=time.time() + record.ready_within)
                # The mark lets the next job on this node remove the files of a killed one.
                node_dirs.acquire_node(record.id, "world-0")
            address = network.address(record.interface, peers=peers() if record.spread else None)
            ClusterFolder.of(record).write(record)
            mpi = mpi_library.mpiexec_of(library.result(), record.mpi)
            record = record.replace(mpi=str(mpi))
            if record.template:
                listener = stub.listen(str(node_dirs.sockets(record.id)))
            world = WorldProcess(record, mpi, index=0, ranks=record.ranks)
            world.spawn(record.deadline - time.time())
            times["mpiexec is started"] = time.time()
        except (WorkbenchError, OSError) as error:
            node_dirs.remove(record.id)  # no process that uses these folders was started
            return _fail(record, error)
        importing.result()
    times["the head has imported Dask"] = time.time()
    if listener is not None:
        # This process has no other thread yet.
        fork_template(socket.socket(fileno=listener.detach()), template_modules(record))
    _import("workbench.head.head")
    append_directory()
    return _run(record, world, address, times)


def _import(module: str) -> None:
    # Modules are not garbage, and the collector would take a tenth of the time of their import.
    gc.disable()
    importlib.import_module(module)
    gc.freeze()
    gc.enable()


def _run(record: Record, world: WorldProcess, address: str, times: dict[str, float]) -> int:
    try:
        return asyncio.run(_serve(record, world, address, times))
    except (WorkbenchError, OSError) as error:
        # For example a folder for spilled data that cannot be created; the world ends with this process.
        return _fail(record, error)


async def _serve(record: Record, world: WorldProcess, address: str, times: dict[str, float]) -> int:
    import dask

    from workbench.collective.serialize import dask_raises_exceptions_only
    from workbench.head.head import Head
    from workbench.head.scheduler import SETTINGS

    dask_raises_exceptions_only()
    dask.config.set(SETTINGS | config.quiet_dask())
    return await Head(record, world, address, times=times).run()


def _refuse(record: Record, turn: int) -> int:
    """End a job that has run before: an administrator or a preemption has put it back into the queue."""
    if turn != record.turn:
        logging.getLogger("workbench.head").info("another job has the cluster, so this one ends")
        return 0
    message = "its job was put back into the queue after it had run, and its ranks were lost. Start a new cluster."
    if record.address is None:
        return _fail(record, StartError(message))  # a client may wait for the start
    logging.getLogger("workbench.head").error(message)
    folder = ClusterFolder.of(record)
    folder.note(record, ended.FAILED, message)
    # The killed head of the first run could not remove the record.
    folder.remove()
    return 1


def _fail(record: Record, error: WorkbenchError | OSError) -> int:
    # The fields have the hint, which is worded where the record is shown.
    message, failure = (error.message, error.fields()) if isinstance(error, WorkbenchError) else (str(error), {})
    logging.getLogger("workbench.head").error(error, exc_info=None if failure else error)
    folder = ClusterFolder.of(record)
    with contextlib.suppress(OSError):  # most likely the disk is full
        folder.update(record.replace(state="failed", message=message, failure=failure))
    with contextlib.suppress(OSError):
        if folder.owns_lease():  # else the folder is that of another cluster
            certificates.remove(folder.path)
    return 1


if __name__ == "__main__":
    sys.exit(debug_log.living("the head", main))
