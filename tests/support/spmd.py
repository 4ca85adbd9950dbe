"""SPMD functions of tests. Ranks import this file by its name, so it imports little itself."""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from support.patience import DEADLINE, FACTOR
from workbench import rank, run_on_ranks, spmd
from workbench.session.current import current_worker

# Items from which ranks meet before they exchange them.
LARGE = 100_000

log = []
"""What `note` noted on this rank."""


def place_of(comm):
    """Return where this rank is in the call, and in MPI."""
    return comm.rank, comm.size, rank.current().rank


def total(comm, X=None):
    """Return the sum of everything, or of the numbers of the ranks."""
    return float(comm.allreduce(float(comm.rank if X is None else X.sum())))


@spmd
def decorated_total(comm, X):
    return total(comm, X)


@spmd(result="root")
def decorated_mean(comm, X):
    # a communicator makes it the plain function
    return decorated_total(comm, X) / comm.allreduce(X.size)


def in_a_thread(function):
    """Return the value of a function, which runs in a thread that this thread starts."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function).result()


def nested(comm):
    return run_on_ranks(total)


def held(_, *blocks):
    """Return for each block under which key of the rank's worker it lies, and its address."""
    data = {its.ctypes.data: str(key) for key, its in current_worker().data.items() if hasattr(its, "ctypes")}
    return [(data[block.ctypes.data], block.ctypes.data) for block in blocks]


def note(comm, client, number):
    """Note whose call this is; a sum on the way shows whether calls crossed."""
    log.append((client, number))
    return int(comm.allreduce(number))


def noted(dask_worker):
    """Return what was noted on this rank, and forget it."""
    found = dask_worker.name, log.copy()
    log.clear()
    return found


def wait_for(path):
    """Wait for a file."""
    while not Path(path).exists():
        time.sleep(0.005)


def meet(comm, mine, other):
    """Exchange messages before and after another call is there, which waits for this one; return them, and where."""
    from mpi4py import MPI

    came = []
    for file in (mine, other):
        if file == mine:
            Path(mine).touch()
        else:
            wait_for(other)
        for to in range(comm.size):
            comm.isend((mine, comm.rank), to)
        came += sorted(comm.recv(source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG) for _ in range(comm.size))
        comm.Barrier()
    return rank.current().rank, came, comm.allreduce(1)


def hang(comm, way, missing, path):
    """Wait in MPI on all ranks but one, which comes when there is a file."""
    if comm.rank == missing:
        wait_for(path)
    return WAYS[way](comm, missing)


def fail(comm, way, which):
    """Wait in MPI on all ranks but one, which raises, and says when."""
    comm.Barrier()
    if comm.rank == which:
        time.sleep(0.02)  # the others are there by then
        raise ValueError(f"rank {which} does not come", time.time())
    WAYS[way](comm, which)


def _sum(length):
    def wait(comm, _):
        sums = np.empty(length)
        comm.Allreduce(np.ones(length), sums)

    return wait


def _receive(comm, missing):
    comm.Recv(np.empty(1), missing)


def _wait(comm, missing):
    comm.Irecv(np.empty(1), missing).Wait()


def _part(comm, missing):
    # All ranks but one have a separate communicator.
    comm.Split(comm.rank == missing).Barrier()


def _dup(comm, _):
    comm.Dup().Barrier()


WAYS = {
    "Allreduce": _sum(4),
    "large Allreduce": _sum(LARGE),
    "Recv": _receive,
    "Wait": _wait,
    "Split": _part,
    "Dup": _dup,
    "Barrier": lambda comm, _: comm.Barrier(),
    "allreduce": lambda comm, _: comm.allreduce("x"),
    "bcast": lambda comm, missing: comm.bcast("x", root=missing),
    "gather": lambda comm, missing: comm.gather("x", root=(missing + 1) % comm.size) or comm.Barrier(),
    "recv": lambda comm, missing: comm.recv(source=missing),
}
"""Ways to wait for a rank."""


def loop(comm, which):
    """Compute for ever on one rank; the others wait for it."""
    while comm.rank == which:
        pass
    comm.Barrier()


def in_c(comm, which, folder):
    """Wait in C code on one rank until a test writes, where nothing can end it; then the next one fails."""
    begun = folder / "begun"
    if comm.rank == which:
        # One call from before the next rank fails until the end: between two it could be ended.
        ctypes.CDLL(None).system(f"touch '{begun}'; cat '{folder / 'pipe'}'".encode())
    if comm.rank == (which + 1) % comm.size:
        wait_for(begun)
        raise ValueError("while another is in C")
    comm.Barrier()


def in_plain_mpi(comm, which):
    """Wait in the MPI library itself, as C code does; one rank fails."""
    from mpi4py import MPI

    if comm.rank == which:
        raise ValueError("while others are in plain MPI", time.time())
    MPI.Intracomm.Barrier(comm)


def raise_on(comm, which, error):
    """Raise on one rank, with the others in MPI."""
    if comm.rank == which:
        raise error
    comm.Barrier()


def leave(comm, which):
    if comm.rank == which:
        sys.exit(3)
    comm.Barrier()


def catch_all(comm, which):
    """Take every ordinary error for nothing, as careless code does."""
    for _ in range(1000):
        try:
            raise_on(comm, which, KeyboardInterrupt())
        except Exception:  # noqa: BLE001, S112
            continue


class Locked(Exception):
    """An error that cannot be sent."""

    def __init__(self, words):
        super().__init__(words)
        self.lock = threading.Lock()


class TwoWords(Exception):
    """An error that can be sent, and not be read."""

    def __init__(self, first, second):
        super().__init__(f"{first} {second}")


def raise_locked(_):
    raise Locked("seven locks")


def raise_two_words(_):
    raise TwoWords("two", "words")


def _only_here():
    module = sys.modules["only_on_ranks"] = type(sys)("only_on_ranks")
    exec("class Error(Exception): pass\nclass Value: pass", module.__dict__)  # noqa: S102
    return module


def raise_unknown(_):
    """Raise an error of a class that there is on the ranks only."""
    raise _only_here().Error("of a class that is not there")


def return_unknown(_):
    """Return something of a class that there is on the ranks only."""
    return _only_here().Value()


def divide(comm, by):
    """Fail on rank 2, two functions deep."""
    if comm.rank == 2:
        try:
            _quotient(by)
        except ZeroDivisionError as error:
            raise ValueError("no quotient") from error
    comm.Barrier()


def _quotient(by):
    return 1 // by


def be_patient():
    """Have the head give ranks that a call is ended on more time than users want to wait; for `run_on_scheduler`."""
    from workbench.collective import protocol

    protocol.CALL_END_S = protocol.WHERE_STUCK_S = 5.0 * FACTOR


def be_impatient():
    """Have the head not wait for ranks that cannot come back; `be_patient` is to follow."""
    from workbench.collective import protocol

    protocol.CALL_END_S = 0.1


def doing(dask_worker):
    """Return the rank and what it does in a call: an MPI operation, None in other code; "" outside of calls."""
    calls = dask_worker.handlers["workbench_spmd_go"].__wrapped__.__self__.calls
    return dask_worker.name, next((call.watch.operation for call in calls.values() if call.running), "")


def spill():
    """Have the worker of this rank write all that it holds to disk, as Dask does when memory is short."""
    worker = current_worker()
    over = threading.Event()

    def evict():
        while worker.data.fast:
            worker.data.evict()
        over.set()

    worker.loop.add_callback(evict)
    assert over.wait(DEADLINE)
