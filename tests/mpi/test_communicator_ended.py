"""Every operation that waits for an absent rank can be ended, and a new communicator works immediately."""

from __future__ import annotations

import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pytest
from support.raised import raises
from support.world import World, found

if TYPE_CHECKING:
    from support.ends import End

# Seconds after which the call is ended, and within which an operation has to return then, on a machine with other work.
SOON, AT_ONCE = 0.02, 20.0
LARGE = 600_000


@pytest.fixture(scope="module")
def endable() -> Iterator[World]:
    # its requests stay outstanding, so MPI cannot be finalized
    world = World(3)
    yield world
    world.stop(finalize=False)


@pytest.fixture
def mortal() -> Iterator[World]:
    world = World(3)
    yield world
    world.stop(finalize=False)


def _communicators() -> Any:
    from mpi4py import MPI

    from workbench.mpi.communicator_cache import CommunicatorCache

    return CommunicatorCache(MPI.COMM_WORLD.Dup())


def _ours(communicators: Any, serial: int, ranks: Any) -> Any:
    from workbench.mpi.call_state import CallState
    from workbench.mpi.communicator import Communicator

    watch = CallState()
    return Communicator(communicators.get(serial, list(ranks), watch.check), watch)


def _ended(comm: Any, operation: Callable[[Any], object]) -> float:
    """Return the seconds that an operation has gone on after it was ended."""
    from workbench.mpi.call_state import CallCancelled

    timer = threading.Timer(SOON, comm.watch.end, ["because"])
    began = time.monotonic()
    timer.start()
    with raises(CallCancelled, args=("because",)):
        operation(comm)
    return time.monotonic() - began - SOON


def _waiting() -> dict[str, Callable[[Any], object]]:
    """Return operations of which the last rank cannot come to the end without rank 0."""
    from mpi4py import MPI

    small, large = (lambda: np.zeros(8)), (lambda: np.zeros(LARGE))

    def waits(post: Callable[[Any], Any], how: str) -> Callable[[Any], object]:
        def operation(comm: Any) -> object:
            request = post(comm)
            return getattr(request, how)(*([[request]] if how.lower() != "wait" else []))

        return operation

    def all_of(comm: Any) -> Any:
        return np.zeros(8 * comm.size)

    last = lambda comm: comm.size - 1  # noqa: E731
    found: dict[str, Callable[[Any], object]] = {
        "Barrier": lambda c: c.Barrier(),
        "barrier": lambda c: c.barrier(),
        "Bcast": lambda c: c.Bcast(small()),
        "Reduce": lambda c: c.Reduce(small(), small(), root=last(c)),
        "Allreduce": lambda c: c.Allreduce(small(), small()),
        "Scan": lambda c: c.Scan(small(), small()),
        "Exscan": lambda c: c.Exscan(small(), small()),
        "Gather": lambda c: c.Gather(small(), all_of(c), root=last(c)),
        "Gatherv": lambda c: c.Gatherv(small(), [all_of(c), [8] * c.size], root=last(c)),
        "Scatter": lambda c: c.Scatter(None, small()),
        "Scatterv": lambda c: c.Scatterv(None, small()),
        "Allgather": lambda c: c.Allgather(small(), all_of(c)),
        "Allgatherv": lambda c: c.Allgatherv(small(), [all_of(c), [8] * c.size]),
        "Alltoall": lambda c: c.Alltoall(all_of(c), all_of(c)),
        "Alltoallv": lambda c: c.Alltoallv([all_of(c), [8] * c.size], [all_of(c), [8] * c.size]),
        "Reduce_scatter": lambda c: c.Reduce_scatter(all_of(c), small()),
        "Reduce_scatter_block": lambda c: c.Reduce_scatter_block(all_of(c), small()),
        "large Bcast": lambda c: c.Bcast(large()),
        "large Reduce": lambda c: c.Reduce(large(), large(), root=last(c)),
        "large Allreduce": lambda c: c.Allreduce(large(), large()),
        "large Allgather": lambda c: c.Allgather(large(), np.zeros((c.size, LARGE))),
        "large Alltoall": lambda c: c.Alltoall(np.zeros((c.size, LARGE)), np.zeros((c.size, LARGE))),
        "bcast": lambda c: c.bcast(None),
        "gather": lambda c: c.gather(None, root=last(c)),
        "scatter": lambda c: c.scatter(None),
        "allgather": lambda c: c.allgather(None),
        "alltoall": lambda c: c.alltoall([None] * c.size),
        "reduce": lambda c: c.reduce(1, root=last(c)),
        "allreduce": lambda c: c.allreduce(1),
        "scan": lambda c: c.scan(1),
        "exscan": lambda c: c.exscan(1),
        "Send": lambda c: c.Send(large(), 0),
        "Ssend": lambda c: c.Ssend(small(), 0),
        "Recv": lambda c: c.Recv(small(), 0),
        "Sendrecv": lambda c: c.Sendrecv(small(), 0, recvbuf=small(), source=0),
        "large Sendrecv": lambda c: c.Sendrecv(large(), 0, recvbuf=large(), source=0),
        "Sendrecv_replace": lambda c: c.Sendrecv_replace(small(), 0, source=0),
        "Probe": lambda c: c.Probe(),
        "Mprobe": lambda c: c.Mprobe(),
        "probe": lambda c: c.probe(0),
        "mprobe": lambda c: c.mprobe(0),
        "send": lambda c: c.send(large(), 0),
        "ssend": lambda c: c.ssend(1, 0),
        "recv": lambda c: c.recv(source=0),
        "sendrecv": lambda c: c.sendrecv(1, 0, source=0),
        "Dup": lambda c: c.Dup(),
        "Split": lambda c: c.Split(0),
        "Split_type": lambda c: c.Split_type(MPI.COMM_TYPE_SHARED),
        "Create": lambda c: c.Create(c.Get_group()),
        "Create_cart": lambda c: c.Create_cart([c.size]),
        "Create_dist_graph_adjacent": lambda c: c.Create_dist_graph_adjacent([0], [0]),
    }
    found |= {how: waits(lambda c: c.Irecv(small(), 0), how) for how in ("Wait", "Waitall", "Waitany", "Waitsome")}
    found |= {how: waits(lambda c: c.irecv(source=0), how) for how in ("wait", "waitall", "waitany", "waitsome")}
    found["Wait for a collective"] = waits(lambda c: c.Iallreduce(small(), small()), "Wait")
    return found


async def each_operation_ends_and_a_fresh_communicator_works(end: End):
    from workbench.mpi.call_state import CallCancelled

    communicators, serial, late = _communicators(), 0, {}
    for name, operation in _waiting().items():
        serial += 1
        comm = _ours(communicators, serial, range(end.size))
        if end.rank == end.size - 1:
            late[name] = _ended(comm, operation)
        elif end.rank:
            threading.Timer(SOON, comm.watch.end, ["because"]).start()
            with suppress(CallCancelled):
                operation(comm)
        comm.watch.end("because")
        with pytest.raises(CallCancelled):
            comm.Barrier()
        communicators.discard(serial)
        serial += 1
        assert _ours(communicators, serial, range(end.size)).allreduce(end.rank) == sum(range(end.size)), name
        await end.gather()
    assert {name: seconds for name, seconds in late.items() if seconds > AT_ONCE} == {}


async def fifty_times_of_fifty(end: End):
    communicators = _communicators()
    for serial in range(1, 101, 2):
        comm = _ours(communicators, serial, range(end.size))
        if end.rank:
            assert _ended(comm, lambda its: its.Allreduce(np.ones(300), np.zeros(300))) < AT_ONCE
        communicators.discard(serial)
        got = np.zeros(300)
        _ours(communicators, serial + 1, range(end.size)).Allreduce(np.ones(300), got)
        assert (got == end.size).all()


async def what_is_made_from_it_ends_too(end: End):
    communicators = _communicators()
    for serial, make in enumerate(
        (
            lambda c: c.Dup(),
            lambda c: c.Split(0, c.rank),
            lambda c: c.Create_cart([c.size], [True]),
            lambda c: c.Create_cart([c.size, 1]).Sub([True, False]),
            lambda c: c.Create(c.Get_group()).Dup(),
        )
    ):
        comm = _ours(communicators, 2 * serial, range(end.size))
        made = make(comm)
        if end.rank:
            assert _ended(comm, lambda _, its=made: its.Allreduce(np.ones(1), np.zeros(1))) < AT_ONCE
            assert comm.watch.operation is None
        assert _ours(communicators, 2 * serial + 1, range(end.size)).allreduce(1) == end.size
        await end.gather()


async def a_reduction_through_shared_memory_ends_too(end: End):
    from workbench.errors import CollectiveFailed
    from workbench.mpi import shared_reduction
    from workbench.mpi.call_state import CallCancelled

    communicators = _communicators()

    def reduce(comm: Any) -> None:
        comm.Allreduce(np.ones(LARGE), np.zeros(LARGE))

    def fail_in_the_middle(comm: Any) -> None:
        with mock.patch.object(shared_reduction.Allreduce, "reduce", failing), pytest.raises(MemoryError):
            reduce(comm)
        with pytest.raises(CollectiveFailed):
            reduce(comm)

    def failing(_: Any, piece: int, _slots: Any) -> None:
        raise MemoryError(piece)

    def end_after_a_piece(comm: Any) -> None:
        # Not before: rank 0 would wait for the piece, in place of its failure.
        write = shared_reduction.Allreduce.write

        def write_and_end(*args: Any) -> None:
            write(*args)
            threading.Timer(SOON, comm.watch.end, ["because"]).start()

        with (
            mock.patch.object(shared_reduction.Allreduce, "write", write_and_end),
            raises(CallCancelled, args=("because",)),
        ):
            reduce(comm)

    for serial, leave in ((1, lambda _: None), (3, fail_in_the_middle), (5, lambda _: None)):
        comm = _ours(communicators, serial, range(end.size))
        for _ in range(4):
            reduce(comm)
        assert comm.shared_reduction is not None
        if end.rank:
            end_after_a_piece(comm)
        else:
            leave(comm)
        await end.gather()
        communicators.discard(serial)
        reduce(_ours(communicators, serial + 1, range(end.size)))


async def messages_arrive_while_a_rank_waits_for_a_reduction_through_shared_memory(end: End):
    from mpi4py import MPI

    communicators = _communicators()
    comm = _ours(communicators, 1, range(end.size))
    for _ in range(4):
        comm.Allreduce(None, np.ones(LARGE))
    plain, big, small = MPI.Intracomm(comm), np.ones(LARGE), np.zeros(1)
    hung = threading.Timer(AT_ONCE, comm.watch.end, ["it hangs"])
    hung.start()
    if end.rank == 0:
        sent = plain.Isend(big, 1, tag=5)
        comm.Allreduce(None, np.ones(LARGE))
        plain.Recv(small, 1, tag=9)
        sent.Wait()
    else:
        if end.rank == 1:
            # While this message is not received, a probe of rank 0 that finds it would make no progress.
            plain.Send(small, 0, tag=9)
            comm.Recv(np.zeros(LARGE), 0, tag=5)
        comm.Allreduce(None, np.ones(LARGE))
    hung.cancel()
    await end.gather()


async def neighbors_end_too(end: End):
    communicators = _communicators()
    operations = (
        lambda c: c.Neighbor_allgather(np.zeros(1), np.zeros(2)),
        lambda c: c.Neighbor_alltoall(np.zeros(2), np.zeros(2)),
        lambda c: c.neighbor_allgather(1),
        lambda c: c.neighbor_alltoall([1, 2]),
        lambda c: c.Ineighbor_allgather(np.zeros(1), np.zeros(2)).Wait(),
    )
    for serial, operation in enumerate(operations):
        cart = _ours(communicators, serial, range(end.size)).Create_cart([end.size], [True])
        if end.rank == end.size - 1:
            assert _ended(cart, operation) < AT_ONCE
        await end.gather()


async def making_the_communicator_of_a_call_ends_too(end: End):
    from workbench.mpi.call_state import CallCancelled, CallState

    communicators = _communicators()
    if end.rank:
        watch = CallState()
        threading.Timer(SOON, watch.end, ["because"]).start()
        began = time.monotonic()
        with pytest.raises(CallCancelled):
            communicators.get(1, range(end.size), watch.check)
        assert time.monotonic() - began < AT_ONCE
        communicators.discard(1)
    await end.gather()
    for serial, ranks in ((2, range(end.size)), (3, range(1, end.size)), (4, [end.size - 1, 0])):
        if end.rank in ranks:
            comm = _ours(communicators, serial, ranks)
            assert comm.allgather(end.rank) == list(ranks)
            assert communicators.get(serial, list(ranks), comm.watch.check) == comm


async def a_rank_that_comes_when_the_others_have_left_ends_too(end: End):
    from workbench.mpi.call_state import CallCancelled, CallState

    communicators, serial, large = _communicators(), 0, np.ones(LARGE)
    operations: tuple[Callable[[Any], object], ...] = (
        lambda c: c.Split(0),
        lambda c: c.Allreduce(large, np.zeros(LARGE)),
        lambda c: c.Create_cart([c.size], [True]).Neighbor_alltoall(np.zeros(2), np.zeros(2)),
    )
    for late in (0, end.size - 1):
        for operation in operations:
            serial += 1
            comm = _ours(communicators, serial, range(end.size))
            if end.rank != late:
                _ended(comm, operation)
            await end.gather()
            if end.rank == late:
                assert _ended(comm, operation) < AT_ONCE
            await end.gather()
        for _ in range(2):
            serial += 1
            watch = CallState()
            timer = threading.Timer(SOON, watch.end, ["because"])
            if end.rank == late:
                await end.gather()
            timer.start()
            with pytest.raises(CallCancelled):
                communicators.get(serial, range(end.size), watch.check)
            if end.rank != late:
                await end.gather()
            await end.gather()
    assert _ours(communicators, serial + 1, range(end.size)).allreduce(1) == end.size


async def a_communicator_that_is_not_ended_is_handed_out_again(end: End):
    communicators = _communicators()
    first = communicators.get(1, range(end.size), lambda: None)
    assert communicators.get(1, range(end.size), lambda: None) is first
    communicators.discard(1)
    assert communicators.get(2, range(end.size), lambda: None) is not first


async def what_a_call_left_of_a_collective_meets_no_later_one(end: End):
    communicators = _communicators()
    for serial in range(1, 9):
        failed = _ours(communicators, serial, range(end.size))
        if end.rank == 0:
            failed.Bcast(np.full(4, -1.0))  # it is on its way, and the others do not take it
        communicators.discard(serial)
        del failed
        await end.gather()
        got = np.full(4, float(serial)) if end.rank == 0 else np.zeros(4)
        _ours(communicators, -serial, range(end.size)).Bcast(got)
        assert got.tolist() == [serial] * 4


async def what_waits_on_a_communicator_that_the_program_revokes_gets_an_error(end: End):
    from mpi4py import MPI

    communicators = _communicators()
    if "MPICH" in MPI.Get_library_version():
        with pytest.raises(NotImplementedError):
            _ours(communicators, 0, range(end.size)).Revoke()
        return
    operations: tuple[Callable[[Any], object], ...] = (
        lambda c: c.Recv(np.zeros(1), 0),
        lambda c: c.recv(source=0),
        lambda c: c.Barrier(),
        lambda c: c.Allreduce(np.ones(LARGE), np.zeros(LARGE)),
        lambda c: c.allreduce(1),
        lambda c: c.scan(1),
        lambda c: c.Split(0),
    )
    for serial, operation in enumerate(operations):
        comm = _ours(communicators, serial, range(end.size))
        assert comm.allreduce(1) == end.size
        await end.gather()
        if end.rank == 0:
            comm.Revoke()
        else:
            hung = threading.Timer(AT_ONCE, comm.watch.end, ["it hangs"])
            hung.start()
            with raises(MPI.Exception, error_class=MPI.ERR_REVOKED):
                operation(comm)
            hung.cancel()
        communicators.discard(serial)
        await end.gather()


async def a_world_that_can_make_no_more_communicators_reports_what_to_do(end: End):
    from mpi4py import MPI

    from workbench.errors import CollectiveFailed
    from workbench.mpi.communicator_cache import CommunicatorCache

    class Exhausted(MPI.Intracomm):
        def Create_group(self, *_: Any) -> Any:  # noqa: N802  (mpi4py's name)
            raise MPI.Exception(MPI.ERR_OTHER)

    communicators = CommunicatorCache(Exhausted(MPI.COMM_WORLD.Dup()))
    with pytest.raises(CollectiveFailed):
        communicators.get(1, range(end.size), lambda: None)


async def a_communicator_is_made_again_if_another_rank_ends_meanwhile(end: End):
    from mpi4py import MPI

    from workbench.mpi.communicator_cache import CommunicatorCache

    class Ending(MPI.Intracomm):
        def Create_group(self, *args: Any) -> Any:  # noqa: N802  (mpi4py's name)
            made = super().Create_group(*args)
            if end.rank == 0:
                raise MPI.Exception(MPI.ERR_PROC_FAILED)
            return made

    communicators = CommunicatorCache(Ending(MPI.COMM_WORLD.Dup()), "ending")
    if end.rank != 1:
        for serial in (1, 2):
            assert _ours(communicators, serial, [0, 2]).allgather(end.rank) == [0, 2]


async def a_request_that_nobody_waits_for_keeps_its_buffer(end: End):
    comm = _ours(_communicators(), 1, range(end.size))
    buffers = [np.zeros(3), np.zeros(3)]
    kept = [weakref.ref(buffer) for buffer in buffers]
    done = comm.Isend(buffers[1], end.rank)
    comm.Irecv(buffers[0], end.rank, tag=1)
    comm.Recv(np.zeros(3), end.rank)
    done.Wait()
    del buffers, done
    assert [buffer() is None for buffer in kept] == [False, True]


async def buffers_go_when_their_requests_are_complete(end: End):
    from mpi4py import MPI

    comm = _ours(_communicators(), 1, range(end.size))
    right, left = (end.rank + 1) % end.size, (end.rank - 1) % end.size
    messages = [lambda send, receive: [comm.Irecv(receive, left), comm.Isend(send, right)]]
    sums = [lambda send, receive: [comm.Iallreduce(send, receive)]]
    ours = lambda requests: requests[0].Waitall(requests)  # noqa: E731
    for wait in (MPI.Request.Waitall, MPI.Request.Testall, ours):
        for post in (*messages, *sums):
            buffers = [np.zeros(3), np.zeros(3)]
            kept = [weakref.ref(buffer) for buffer in buffers]
            requests = post(*buffers)
            while not wait(requests):
                pass
            del buffers, requests
            comm.Iallreduce(np.zeros(1), np.zeros(1)).Wait()
            assert [buffer() is None for buffer in kept] == [True, True]


async def a_message_that_is_too_long_leaves_nothing_behind(end: End):
    from mpi4py import MPI

    from workbench.mpi import polling

    comm = _ours(_communicators(), 1, range(end.size))
    before = sum(map(len, polling.abandoned.values()))
    sent = comm.Isend(np.zeros(8), end.rank)
    with pytest.raises(MPI.Exception):
        comm.Recv(np.zeros(2), end.rank)
    sent.Wait()
    assert sum(map(len, polling.abandoned.values())) == before


async def what_mpi_may_write_to_yet_is_kept(end: End):
    from workbench.mpi.call_state import CallCancelled

    communicators, gone = _communicators(), []
    operations: dict[str, Callable[[Any, Any, Any], object]] = {
        "Reduce": lambda c, send, receive: c.Reduce(send, receive, root=end.size - 1),
        "Allreduce": lambda c, send, receive: c.Allreduce(send, receive),
        "Scan": lambda c, send, receive: c.Scan(send, receive),
        "Gather": lambda c, send, receive: c.Gather(send[:8], receive, root=end.size - 1),
        "Allgatherv": lambda c, send, receive: c.Allgatherv(send[:8], [receive, [8] * end.size]),
        "Alltoall": lambda c, send, receive: c.Alltoall(send, receive),
        "Reduce_scatter": lambda c, send, receive: c.Reduce_scatter(send, receive[:8], [8] * end.size),
        "a request": lambda c, send, receive: (c.Iallreduce(send, receive), c.Barrier()),
    }
    for serial, (name, operation) in enumerate(operations.items(), 1):
        comm = _ours(communicators, serial, range(end.size))
        # MPI has the buffers only after the ranks have compared them.
        comm.compared = tuple(operations)
        buffers = [np.zeros(8 * end.size), np.zeros(8 * end.size)]
        kept = [weakref.ref(buffer) for buffer in buffers]
        if end.rank:
            threading.Timer(SOON, comm.watch.end, ["because"]).start()
            with suppress(CallCancelled):
                operation(comm, *buffers)
        del buffers
        # the last rank cannot come to the end of any
        if end.rank == end.size - 1 and any(buffer() is None for buffer in kept):
            gone.append(name)
        communicators.discard(serial)
        await end.gather()
    assert gone == []


async def survivors_of_a_dead_rank_get_a_communicator(end: End):
    communicators = _communicators()
    comm = _ours(communicators, 1, range(end.size))
    assert comm.allreduce(1) == end.size
    await end.gather()
    from mpi4py import MPI

    if end.rank == 1:
        if "Open MPI" in MPI.Get_library_version():
            os.kill(os.getpid(), signal.SIGKILL)
        return  # any other MPI would end the whole world
    from workbench.mpi.call_state import CallCancelled

    threading.Timer(1.0, comm.watch.end, ["because"]).start()
    with pytest.raises((CallCancelled, MPI.Exception)):
        comm.Allreduce(np.ones(1), np.zeros(1))
    communicators.discard(1)
    survivors = [rank for rank in range(end.size) if rank != 1]
    for serial in (2, 3):
        fresh = _ours(communicators, serial, survivors)
        assert fresh.allgather(end.rank) == survivors
        assert fresh.Split(0).allreduce(1) == len(survivors)


async def a_dead_rank_ends_a_reduction_through_shared_memory(end: End):
    from mpi4py import MPI

    comm = _ours(_communicators(), 1, range(end.size))
    for _ in range(4):
        comm.Allreduce(None, np.ones(LARGE))
    await end.gather()
    if end.rank == 1:
        if "Open MPI" in MPI.Get_library_version():
            MPI.Intracomm(comm).Send(np.zeros(1), 0)  # rank 0 does not receive this message
            os.kill(os.getpid(), signal.SIGKILL)
        return
    if "Open MPI" not in MPI.Get_library_version():
        return
    hung = threading.Timer(AT_ONCE, comm.watch.end, ["it hangs"])
    hung.start()
    with raises(MPI.Exception, error_class=MPI.ERR_PROC_FAILED):
        comm.Allreduce(None, np.ones(LARGE))
    hung.cancel()


CHECKS = (
    each_operation_ends_and_a_fresh_communicator_works,
    fifty_times_of_fifty,
    what_is_made_from_it_ends_too,
    a_reduction_through_shared_memory_ends_too,
    neighbors_end_too,
    making_the_communicator_of_a_call_ends_too,
    a_rank_that_comes_when_the_others_have_left_ends_too,
    a_communicator_that_is_not_ended_is_handed_out_again,
    what_a_call_left_of_a_collective_meets_no_later_one,
    what_waits_on_a_communicator_that_the_program_revokes_gets_an_error,
    a_world_that_can_make_no_more_communicators_reports_what_to_do,
    a_communicator_is_made_again_if_another_rank_ends_meanwhile,
    a_request_that_nobody_waits_for_keeps_its_buffer,
    buffers_go_when_their_requests_are_complete,
    a_message_that_is_too_long_leaves_nothing_behind,
    what_mpi_may_write_to_yet_is_kept,
)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_call_that_is_ended(endable: World, check: Any) -> None:
    endable.run(check)


@pytest.mark.parametrize("world", ["2-piecewise"], indirect=True)
def test_messages_arrive_while_a_rank_waits_for_a_reduction_through_shared_memory(world: World) -> None:
    world.run(messages_arrive_while_a_rank_waits_for_a_reduction_through_shared_memory)


def test_a_dead_rank_ends_a_reduction_through_shared_memory(mortal: World) -> None:
    mortal.run(a_dead_rank_ends_a_reduction_through_shared_memory, mortal=[1])
    assert mortal.dead == ({1} if found().flavor == "openmpi" else set())


def test_survivors_of_a_dead_rank_get_a_communicator(mortal: World) -> None:
    mortal.run(survivors_of_a_dead_rank_get_a_communicator, mortal=[1])
    assert mortal.dead == ({1} if found().flavor == "openmpi" else set())
