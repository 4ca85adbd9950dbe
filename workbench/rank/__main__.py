"""``python -m workbench.rank NAME --world W --ranks N``: one MPI process of a world.

``mpiexec`` starts this module once per rank. The head writes the scheduler's address to the standard input of rank 0,
and rank 0 broadcasts the address over MPI, so that ranks start at the same time as the scheduler and need no file.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import functools
import gc
import inspect
import os
import signal
import sys
import time
import traceback
from typing import NoReturn

from workbench import comm
from workbench.deploy import logs
from workbench.deploy.folder import ClusterFolder
from workbench.deploy.record import Record
from workbench.deploy.registry import await_record
from workbench.errors import WorkbenchError
from workbench.fork.become import append_directory
from workbench.host import guard, node_dirs, output, parent_death, processes
from workbench.host.processes import ProcessId
from workbench.mpi.context import abort_world, current
from workbench.rank import world

# Seconds to finalize MPI together, when the whole world ends.
_FINALIZE_TIMEOUT_S = 3.0
# Seconds before that, for frames that MPI still transports.
_DRAIN_TIMEOUT_S = 1.0
# Prefixes of the names of launcher daemons on other nodes, where no descent from the head shows them: of Open MPI 5 and
# 4, MPICH and Intel MPI, MVAPICH, Slurm, Flux, PALS, ParaStation, JSM, Fujitsu's MPI.
_DAEMONS = (
    *("prte", "orte", "mpirun", "mpiexec", "hydra_", "mpispawn"),
    *("slurmstepd", "flux-shell", "palsd", "psid", "jsmd", "plexec"),
)


def main(daemon: int | None = None, began: float | None = None) -> NoReturn:
    """Run this rank to its end.

    Parameters
    ----------
    daemon
        Pid of the launcher's daemon that started the stub of this rank; None: the daemon started this process.
    began
        Start time of the stub in seconds since the epoch; None: this process has no stub.
    """
    times = {"begun": began, "forked": time.time()} if began else {"begun": time.time()}
    parser = argparse.ArgumentParser(prog="workbench.rank")
    parser.add_argument("name")
    parser.add_argument("id")
    parser.add_argument("--world", type=int, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--timeout", type=float, required=True, help="seconds until the world must be ready")
    arguments = parser.parse_args()
    # A program of the user in a call, a cell or a task parses its own options.
    sys.argv = [""]

    if daemon is None:
        daemon = os.getppid()
        parent_death.set_signal(daemon, signal.SIGKILL)
        parent_death.poll_parent(daemon)
    output.keep_on()
    append_directory()
    faulthandler.enable()
    if guard.VARIABLE in os.environ:
        guard.declare_rank()
        os.environ[guard.VARIABLE] = guard.OF_RANK
    # A rank has a connection to each other rank. On nodes without the head no other process has raised the limit.
    processes.allow_many_files()
    stderr_fd = os.dup(2)
    # Garbage collection among modules takes a tenth of the time of their import.
    gc.disable()
    record = await_record(arguments.name, arguments.id)
    if not record.process.is_local:
        # The head cleans up its own host.
        node_dirs.acquire_node(record.id, f"world-{arguments.world}")
        signal.signal(signal.SIGTERM, functools.partial(_end_tidily, record))
    try:
        finalize = world.live(record, arguments.world, arguments.ranks, arguments.timeout, times)
    except BaseException as error:  # noqa: BLE001  (whatever it is, it ends the world)
        _abort(error, stderr_fd, record, arguments.world, daemon)
    if record.process.alive() is False:
        # The head was killed, so that no other process cleans up.
        node_dirs.remove(record.id, but_shared_memory=True)
    elif not record.process.is_local:
        node_dirs.release_node(record.id)
    _exit(finalize)


def _end_tidily(record: Record, number: int, _: object) -> NoReturn:
    """End by a signal; when a job is canceled, only its ranks can clean up the nodes without the head."""
    node_dirs.release_node(record.id)
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
    raise AssertionError("the signal ends this process")


def _abort(error: BaseException, stderr_fd: int, record: Record, index: int, daemon: int) -> NoReturn:
    """End the whole world, which is not ready yet, with the reason in its log."""
    try:
        name = f"rank {current().rank}"
    except RuntimeError:
        name = "a rank that had not joined the MPI world yet"
    lines = "".join(traceback.format_exception(error))
    while error.__cause__ is not None:
        error = error.__cause__  # the cause is more specific than "failed to start"
    cause = traceback.format_exception_only(error)[-1].strip()
    if isinstance(error, WorkbenchError):
        lines, cause = "", str(error)  # these sentences are for the user, who would search them below a traceback
    reason = f"{lines}{logs.FAILURE}{name} failed while starting: {cause}\n".encode()
    sys.stderr.write(lines)
    try:
        # mpiexec may end before it has forwarded the output.
        os.write(os.open(logs.of_world(ClusterFolder.of(record).logs, index), os.O_WRONLY | os.O_APPEND), reason)
    except OSError:
        with contextlib.suppress(OSError):
            os.write(stderr_fd, reason)
    if not record.process.is_local:
        node_dirs.release_node(record.id)
    abort_world(daemon if _is_launcher(daemon, record.process) else None)


def _is_launcher(daemon: int, head: ProcessId) -> bool:
    """Return whether a process belongs to the world: the parent of an orphan may be the user's session."""
    import psutil

    try:
        process = psutil.Process(daemon)
        if not head.is_local:
            return process.name().startswith(_DAEMONS)
        return any(parent.pid == head.pid for parent in process.parents())
    except psutil.Error:
        return False  # the daemon has ended


def _exit(finalize: bool | None) -> NoReturn:
    """End this rank, with MPI_Finalize if all ranks of the world end now."""
    # MPI_Finalize would wait for an outstanding request.
    if comm.leave(_DRAIN_TIMEOUT_S) and finalize:
        from mpi4py import MPI

        try:
            current().spmd_thread.submit(inspect.unwrap(MPI.Finalize)).result(_FINALIZE_TIMEOUT_S)
        except BaseException:  # noqa: BLE001  (a peer is dead; the process ends anyway)
            traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1 if finalize is None else 0)


if __name__ == "__main__":
    main()
