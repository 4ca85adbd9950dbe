"""Functions for all ranks that leave something behind. Ranks import this file by its name."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import weakref

import numpy as np

from workbench import spmd
from workbench.placement.in_use import empty_aligned

# Bytes of this many numbers travel without that the receiver is asked, and are the same as those of no other array.
FEW = 400
ROWS = 1_234_567
LARGE = 1 << 20

# Cannot be pickled, as much of what modules have.
_lock = threading.Lock()

noted = []
"""References to arrays that do not keep them."""


def ranks(comm):
    return comm.allgather(comm.rank)


def fail_with_a_request(comm):
    """Leave a message on its way to memory that is free by then."""
    comm.Barrier()
    if comm.rank == 0:
        comm.Isend(np.full(FEW, 7.0), 1)
    elif comm.rank == 1:
        time.sleep(0.05)  # the message lies before the door, and MPI has not looked
        comm.Irecv(np.zeros(FEW), 0)
        raise ValueError("rank 1 fails with a request")
    comm.Barrier()
    comm.Barrier()


def fail_with_a_buffer(comm):
    """Fail on all ranks, each with its buffer attached."""
    from mpi4py import MPI

    MPI.Attach_buffer(bytearray(8 * FEW + MPI.BSEND_OVERHEAD))
    comm.Bsend(np.full(FEW, comm.rank), (comm.rank + 1) % comm.size)
    comm.Barrier()
    raise ValueError("a call with a buffer")


def send_by_a_buffer(comm, detaches=True):
    """Return what each rank gets from the rank before by a buffered send, and whether all have detached a buffer."""
    from mpi4py import MPI

    MPI.Attach_buffer(bytearray(8 * FEW + MPI.BSEND_OVERHEAD))
    comm.Bsend(np.full(FEW, comm.rank), (comm.rank + 1) % comm.size)
    got = np.empty(FEW, int)
    comm.Recv(got)
    return got[0], MPI.Detach_buffer() is not None if detaches else None


def fail(comm):
    """Fail on all ranks."""
    comm.Barrier()
    raise ValueError("a call without a buffer")


def detach_the_buffer(_comm):
    """Return the size of the buffer that another call has left."""
    from mpi4py import MPI

    return len(MPI.Detach_buffer()) > 1000


def dirty_zeros(comm):
    """Return how many arrays of zeros are not so any more after some messages."""
    arrays = [np.zeros(FEW) for _ in range(200)]
    for _ in range(5):
        comm.Barrier()
    return sum(bool(array.any()) for array in arrays)


def leave_a_request(comm):
    comm.Irecv(np.zeros(1), (comm.rank - 1) % comm.size)


def leave_a_thread(comm):
    """Leave a thread that waits for a message."""
    threading.Thread(target=comm.recv, kwargs={"source": (comm.rank - 1) % comm.size}, daemon=True).start()
    while comm.watch.operation is None:
        pass


def leave_a_server(comm, *, by_name):
    """Leave a thread that receives each message that arrives, without a wait; return what the thread has received."""
    from mpi4py import MPI

    served, ended = [], threading.Event()
    world = MPI.COMM_WORLD if by_name else comm

    def serve():
        try:
            while True:
                if world.iprobe():
                    served.append(world.recv())
        finally:
            ended.set()

    threading.Thread(target=serve, daemon=True).start()
    comm.send(comm.rank, comm.rank)
    while not served:
        pass
    MPI.servers = ended
    return served


def wait_for_the_end_of_the_server(comm):
    """Send a message that the server would receive; return whether this ends the server, and the message."""
    from mpi4py import MPI

    comm.isend(comm.rank, comm.rank)
    return MPI.servers.wait(60), comm.recv()


def broadcast_alone(comm):
    """Broadcast from rank 0 what the others do not receive."""
    if comm.rank == 0:
        comm.bcast("of another call")


def broadcast_to_all(comm):
    return comm.bcast("of this call" if comm.rank == 0 else None)


def passed_on(comm):
    comm.isend(comm.rank, (comm.rank + 1) % comm.size)
    return comm.recv(source=(comm.rank - 1) % comm.size)


def miss_the_end(comm, way):
    """Be in MPI when the code is interrupted, or take that for nothing; and never call MPI again."""
    if comm.rank == 1:
        raise ValueError("rank 1 does not come")
    if way == "python after mpi":
        with comm.watch.entered("Allreduce"):
            time.sleep(0.3)
        spin()
    else:
        with contextlib.suppress(BaseException):
            spin()
        spin()


def spin():
    end = time.monotonic() + 60
    while time.monotonic() < end:
        pass


def running(dask_worker):
    calls = dask_worker.handlers["workbench_spmd_go"].__wrapped__.__self__.calls
    return [call for call, its in calls.items() if its.running]


def reduce_badly(comm, way):
    array = np.ones(LARGE)
    comm.Reduce(array, None if way == "nothing to receive into" else array)


def reduce_in_place(comm):
    array = np.ones(LARGE)
    comm.Reduce(*((None, array) if comm.rank == 0 else (array, None)))
    return array[0], array[-1]


def rows(comm):
    """Return an array that is a block as it is, and note it."""
    array = empty_aligned((ROWS,), float)
    array[:] = 1
    noted.append(weakref.ref(array))
    return array


def held():
    """Return whether this rank has the array that it noted last."""
    return noted[-1]() is not None


def masked(comm):
    return np.ma.masked_array([1.0, 2.0], [True, False])


def freed(comm):
    """Return how many communicators are left of one that was used and freed."""
    made = comm.Dup()
    made.allreduce(1)
    made.Free()
    return len(comm.derived)


def loop_until_ended(comm):
    """Be in Python code when the call ends."""
    if comm.rank == 1:
        raise ValueError("rank 1 fails")
    while True:
        pass


def sleep_in_c(comm, pipe):
    """Wait until a test writes."""
    with pipe.open() as file:
        file.read()


def traced():
    """Run some code as a debugger does."""
    before = sys.gettrace()
    sys.settrace(lambda *_: None)
    try:
        return sum(number for number in range(100))
    finally:
        sys.settrace(before)


def send_for_nobody(comm):
    """Send a message without a receive."""
    if comm.rank == 0:
        comm.isend("of the call before", 1)


def free_a_copy(comm):
    """Use a persistent request, and free it, by a copy: MPI gives its handle to what is made next."""
    from mpi4py import MPI

    class Copy(MPI.Prequest):
        pass

    alone = comm.Split(comm.rank)
    copy = Copy(alone.Send_init([MPI.BOTTOM, 0, MPI.BYTE], dest=MPI.PROC_NULL))
    copy.Start()
    copy.Wait()
    copy.Free()
    alone.Free()


def start_for_nobody(comm):
    """Send a message without a receive, by a persistent request."""
    if comm.rank == 0:
        comm.Send_init(np.full(FEW, 1, dtype="b"), 1).Start()


def cancel_a_receive(comm):
    """Cancel a receive by what cannot be counted, and leave a message too large to go without its receiver."""
    from mpi4py import MPI

    receiving = comm.Irecv(np.zeros(1), (comm.rank - 1) % comm.size)
    MPI.Request.Cancel(receiving)
    receiving.Wait()
    comm.Barrier()
    comm.Isend(np.ones(LARGE), (comm.rank + 1) % comm.size)


def look_for(comm):
    """Receive by probes; return what distinguishes communicators."""
    sent = comm.isend(comm.rank, (comm.rank + 1) % comm.size)
    while (message := comm.improbe()) is None:
        pass
    assert message.recv() == (comm.rank - 1) % comm.size
    sent.wait()
    return comm.py2f()


def spoil(comm, way):
    """Leave the communicator so that it is of no use, or ends the world."""
    from mpi4py import MPI

    if way == "Set_errhandler":
        comm.Set_errhandler(MPI.ERRORS_ARE_FATAL)
    else:
        # not every MPI can, and another rank may have been faster
        with contextlib.suppress(MPI.Exception, NotImplementedError):
            comm.Barrier()
            comm.Revoke()


def survives(comm):
    """Return whether an error of MPI is one that can be caught."""
    from mpi4py import MPI

    comm.allreduce(1)
    try:
        MPI.Comm.Send(comm, np.zeros(1), comm.size)
    except MPI.Exception:
        return True
    return False


def pass_on(comm):
    """Receive from rank 0 whatever comes first."""
    if comm.rank == 0:
        comm.send("of this call", 1)
    return comm.recv(source=0) if comm.rank == 1 else None


def wait_for(comm, path):
    """Run until there is a file."""
    while not path.exists():
        time.sleep(0.01)


@spmd
def decorated(comm):
    return _lock.locked(), comm.size
