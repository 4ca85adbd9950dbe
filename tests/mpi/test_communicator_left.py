"""What is left of a call is known, and a message or receive that was given up does not meet what comes later."""

from __future__ import annotations

import contextlib
import functools
import threading
import types
import weakref
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pytest
from support.ends import until
from support.patience import DEADLINE
from support.world import World, on_ranks

from workbench.collective import serialize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.ends import End

    from workbench.collective.rank_call import SpmdCall


# The default is too short for a busy machine.
patient = mock.patch("workbench.mpi.communicator_cache._SETTLE_TIMEOUT", DEADLINE)


@pytest.fixture(scope="module")
def untidy() -> Iterator[World]:
    # its requests stay outstanding, so MPI cannot be finalized
    world = World(3)
    yield world
    world.stop(finalize=False)


def run(call: SpmdCall, communicators: Any, rank: int, last: SpmdCall | None = None) -> Any:
    """Run a call on this rank, and return the outcome."""
    activity: Any = types.SimpleNamespace(running=lambda *_: contextlib.nullcontext())
    return call.run(communicators, activity, last, rank, {"root": False, "limit": None})


async def left_behind(end: End, function: Callable[[Any], object]) -> tuple[bool, bool]:
    """Run an SPMD call; return whether requests may be pending, and whether messages are missing."""
    from mpi4py import MPI

    from workbench.collective.rank_call import SpmdCall
    from workbench.mpi.counters import KEYS

    class Fresh:
        def get(self, *_: object) -> Any:
            return MPI.COMM_WORLD.Dup()

    call = SpmdCall("ab", "a call", 1, tuple(range(end.size)))
    call.function = lambda comm: [function(comm)].clear()
    assert run(call, Fresh(), end.rank)["nbytes"]
    told = (await end.gather(call.left_behind())).values()
    return any(each["pending"] for each in told), bool(sum(each["messages"] for each in told) & KEYS)


@on_ranks
async def test_a_buffer_is_not_detached_before_its_messages_are_received(end: End):
    from mpi4py import MPI

    from workbench.mpi import derived

    derived.track_buffer()
    comm, message = MPI.COMM_WORLD.Dup(), np.full(1_000_000, float(end.rank))
    MPI.Attach_buffer(bytearray(message.nbytes + MPI.BSEND_OVERHEAD))
    comm.Bsend(message, right(comm))
    assert not derived.detach_empty_buffer()
    assert derived.is_buffer_attached()
    await end.gather(None)  # no rank receives before all have tried

    comm.Recv(message)
    assert message[0] == (comm.rank - 1) % comm.size
    await until(derived.detach_empty_buffer)
    MPI.Attach_buffer(bytearray(10_000))  # MPI refuses a second one
    MPI.Detach_buffer()
    await end.gather(None)
    comm.Free()


@on_ranks
async def test_a_buffer_of_each_kind_is_detached(end: End):
    from mpi4py import MPI

    from workbench.mpi import derived

    class OnlyDLPack:
        """A buffer like a tensor of PyTorch."""

        _numbers = np.zeros(10_000)

        def __dlpack__(self, **options: Any) -> Any:
            return self._numbers.__dlpack__(**options)

        def __dlpack_device__(self) -> Any:
            return self._numbers.__dlpack_device__()

    derived.track_buffer()
    for buffer in (bytearray(10_000), np.zeros((9, 99)), OnlyDLPack(), None, MPI.BUFFER_AUTOMATIC):
        try:
            MPI.Attach_buffer(buffer)
        except MPI.Exception:
            assert buffer is None or buffer is MPI.BUFFER_AUTOMATIC
            assert MPI.Get_version() < (4, 1)  # the first version that makes buffers
        else:
            assert derived.is_buffer_attached()
            await until(derived.detach_empty_buffer)
            assert not derived.is_buffer_attached()
    MPI.Attach_buffer(bytearray(10_000))  # MPI refuses a second one
    MPI.Detach_buffer()


def right(comm: Any) -> int:
    return (comm.rank + 1) % comm.size


def left(comm: Any) -> int:
    return (comm.rank - 1) % comm.size


def clean() -> dict[str, Callable[[Any], object]]:  # noqa: C901  (a list of cases)
    """Return functions that receive whatever is sent, in all ways that there are."""
    from mpi4py import MPI

    def shifted(comm: Any) -> None:
        before = comm.rank - 1 if comm.rank else MPI.PROC_NULL
        after = comm.rank + 1 if comm.rank + 1 < comm.size else MPI.PROC_NULL
        comm.Sendrecv(np.ones(1), after, recvbuf=np.zeros(1), source=before)
        comm.sendrecv(1, after, source=before)
        comm.Sendrecv_replace(np.ones(1), after, source=before)
        comm.send(1, MPI.PROC_NULL)
        comm.Recv(np.zeros(1), MPI.PROC_NULL)

    def from_any(comm: Any) -> None:
        for wait in (lambda its: its.Wait(), lambda its: its.Wait(MPI.Status()), spun):
            receiving = comm.Irecv(np.zeros(1))
            comm.Send(np.ones(1), right(comm))
            wait(receiving)
        comm.isend(1, right(comm))
        comm.irecv().wait()
        comm.isend(2, right(comm))
        comm.recv()
        comm.isend(3, right(comm))
        comm.mprobe().recv()
        comm.Barrier()

    def spun(request: Any) -> None:
        while not request.Test():
            pass

    def cancelled(comm: Any) -> None:
        for source in (left(comm), MPI.ANY_SOURCE):
            receiving = comm.Irecv(np.zeros(1), source)
            receiving.Cancel()
            receiving.Wait()

    def too_late_to_cancel(comm: Any) -> None:
        for source in (comm.rank, MPI.ANY_SOURCE):
            receiving = comm.Irecv(np.zeros(1), source)
            comm.Isend(np.ones(1), comm.rank).Wait()
            while not receiving.Get_status():
                pass
            receiving.Cancel()
            receiving.Wait()

    def receive_for_nobody(comm: Any) -> None:
        comm.Irecv(np.zeros(1), left(comm))
        comm.Irecv(np.zeros(1))

    return {its.__name__: its for its in (shifted, from_any, cancelled, too_late_to_cancel, receive_for_nobody)}


def unclean() -> dict[str, Callable[[Any], object]]:
    """Return functions that send a message without a receive, and do something else that is amiss."""
    from mpi4py import MPI

    def cancel(comm: Any) -> None:
        receiving = comm.Irecv(np.zeros(1), left(comm), tag=1)
        receiving.Cancel()
        receiving.Wait()
        comm.Isend(np.ones(1), right(comm), tag=1).Wait()

    def end_at_the_edge(comm: Any) -> None:
        comm.send(1, right(comm))
        comm.recv(source=MPI.PROC_NULL)

    def shift_to_the_edge(comm: Any) -> None:
        comm.Sendrecv(np.ones(1), right(comm), recvbuf=np.zeros(1), source=MPI.PROC_NULL)

    def receive_what_was_not_counted(comm: Any) -> None:
        MPI.Comm.Isend(comm, np.ones(1), left(comm), tag=1).Wait()
        comm.Isend(np.ones(1), comm.rank).Wait()
        comm.Recv(np.zeros(1), right(comm), tag=1)

    def free(comm: Any) -> None:
        receiving = comm.Irecv(np.zeros(1), left(comm), tag=1)
        comm.Isend(np.ones(1), right(comm)).Wait()
        receiving.Free()

    return {
        its.__name__: its for its in (cancel, end_at_the_edge, shift_to_the_edge, receive_what_was_not_counted, free)
    }


@on_ranks
async def test_a_call_whose_messages_were_all_received_leaves_nothing(end: End) -> None:
    for name, function in clean().items():
        assert await left_behind(end, function) == (False, False), name


async def each_is_noticed(end: End) -> None:
    for name, function in unclean().items():

        def run(comm: Any, its: Callable[[Any], object] = function) -> None:
            its(comm)
            comm.Barrier()  # until then each takes in what the others send

        assert any(await left_behind(end, run)), name


def test_a_message_that_nobody_received_is_noticed_whatever_else_is_amiss(untidy: World) -> None:
    untidy.run(each_is_noticed)


async def a_collective_operation_of_some_ranks_is_noticed(end: End) -> None:
    assert any(await left_behind(end, lambda comm: comm.bcast("left") if comm.rank == 0 else None))
    assert any(await left_behind(end, lambda comm: comm.Ibcast(np.zeros(1)).Wait() if comm.rank == 0 else None))

    def of_all(comm: Any) -> None:
        part = comm.Split(comm.rank % 2)
        for _ in range(comm.rank % 2 + 1):
            part.allreduce(1)
        comm.Ibarrier().Wait()

    assert not any(await left_behind(end, of_all))


def test_a_collective_operation_of_some_ranks_is_noticed(untidy: World) -> None:
    untidy.run(a_collective_operation_of_some_ranks_is_noticed)


@on_ranks
async def test_an_exchange_that_is_refused_takes_no_message_and_sends_none(end: End) -> None:
    from mpi4py import MPI

    from workbench.mpi.communicator import Communicator

    comm, got = Communicator(MPI.COMM_WORLD.Dup()), np.zeros(2)
    array = np.ones(2)
    refused: dict[str, Callable[[], object]] = {
        "a count": lambda: comm.Sendrecv([array, -1, "d"], right(comm), recvbuf=got, source=left(comm)),
        "a rank": lambda: comm.Sendrecv(array, comm.size, recvbuf=got, source=left(comm)),
        "a tag": lambda: comm.Sendrecv(array, right(comm), -5, recvbuf=got, source=left(comm)),
        "a count of what is received": lambda: comm.Sendrecv(
            array, right(comm), recvbuf=[got, -1, "d"], source=left(comm)
        ),
        "a sender": lambda: comm.Sendrecv(array, right(comm), recvbuf=got, source=comm.size),
        "a rank for an object": lambda: comm.sendrecv(1, comm.size, source=left(comm)),
        "a sender of an object": lambda: comm.sendrecv(1, right(comm), source=comm.size),
    }
    for number, (name, exchange) in enumerate(refused.items()):
        sent = comm.Isend(np.full(2, float(number)), right(comm))
        comm.Barrier()  # the message may be there by now, and matches
        with pytest.raises((MPI.Exception, ValueError)):
            exchange()
        comm.Recv(got, left(comm))
        assert got.tolist() == [number] * 2, name
        sent.Wait()
        comm.Barrier()
        more = comm.Iprobe()
        comm.Barrier()  # before the next message is sent
        assert not more, name


@patient
async def what_is_left_is_received_but_for_a_collective_of_one_rank(end: End) -> None:
    from mpi4py import MPI

    from workbench.mpi import communicator_cache

    made = communicator_cache.CommunicatorCache(MPI.COMM_WORLD.Dup())
    comm = made.get(1, range(end.size), lambda: None)
    left_over = [comm.Isend(np.ones(size), right(comm), tag=size) for size in (0, 1, 600_000) for _ in range(2)]
    assert made.settle(1, b"the end of a call", left_over)
    comm.Barrier()
    more = comm.Iprobe()
    comm.Barrier()  # before the next mark is sent
    assert not more
    assert made.get(1, range(end.size), lambda: None) is comm
    with mock.patch("workbench.mpi.communicator_cache._SETTLE_TIMEOUT", 0.1):
        settled = made.settle(1, b"another end", [comm.Ibarrier()] if end.rank == 0 else [])
    assert end.rank > 0 or not settled


@patient
async def what_is_left_on_communicators_that_a_call_made_is_received(end: End) -> None:
    from mpi4py import MPI

    from workbench.collective.rank_call import SpmdCall
    from workbench.mpi import communicator_cache

    communicators = communicator_cache.CommunicatorCache(MPI.COMM_WORLD.Dup())
    last: SpmdCall | None = None

    def call(number: int, function: Callable[[Any], object]) -> dict[str, Any]:
        nonlocal last
        before, last = last, SpmdCall(str(number), "a call", 1, tuple(range(end.size)))
        last.function = function
        return run(last, communicators, end.rank, before)

    def leaves(comm: Any) -> None:
        for made in (comm.Dup(), comm.Split(0, -comm.rank), comm.Create_cart([comm.size])):
            made.send("left", right(made), 5)
            made.Barrier()

    def makes(comm: Any) -> set[str]:
        got = set()
        for made in (comm.Dup(), comm.Split(0, -comm.rank), comm.Create_cart([comm.size])):
            made.isend("new", right(made), 5)
            got.add(made.recv(source=left(made), tag=5))
        return got

    for number in range(3):
        assert call(2 * number, leaves)["messages"]
        assert last.settle(communicators)
        told = call(2 * number + 1, makes)
        assert serialize.loads(told["value"]) == {"new"}


@patient
async def a_buffer_of_the_communicator_ends_with_the_call(end: End) -> None:
    from mpi4py import MPI

    from workbench.collective.rank_call import SpmdCall
    from workbench.mpi import communicator_cache

    def send(comm: Any) -> None:
        with contextlib.suppress(NotImplementedError):  # before MPI 4.1
            comm.Attach_buffer(bytearray(8_000_000 + MPI.BSEND_OVERHEAD))
            comm.Bsend(np.zeros(1_000_000), right(comm))

    communicators, last = communicator_cache.CommunicatorCache(MPI.COMM_WORLD.Dup()), None
    for number in range(3):
        before, last = last, SpmdCall(str(number), "a call", 1, tuple(range(end.size)))
        last.function = send
        assert run(last, communicators, end.rank, before)["pending"]
        assert last.settle(communicators)


def test_a_buffer_of_the_communicator_ends_with_the_call(untidy: World) -> None:
    untidy.run(a_buffer_of_the_communicator_ends_with_the_call)


def test_what_is_left_on_communicators_that_a_call_made_is_received(untidy: World) -> None:
    untidy.run(what_is_left_on_communicators_that_a_call_made_is_received)


def test_what_is_left_of_a_call_is_received(untidy: World) -> None:
    untidy.run(what_is_left_is_received_but_for_a_collective_of_one_rank)


async def a_copy_that_is_freed_leaves_a_request_alone(end: End) -> None:
    from mpi4py import MPI

    from workbench.collective.rank_call import SpmdCall
    from workbench.mpi import polling

    alone = MPI.COMM_WORLD.Split(end.rank)
    alone.Set_errhandler(MPI.ERRORS_RETURN)

    def free_copies(comm: Any, *, started: bool) -> None:
        made = comm.Split(comm.rank)
        for _ in range(20):
            posted = [
                made.Recv_init(np.zeros(1), 0),
                made.Send_init(np.zeros(1), 0),
                made.Allreduce_init(np.zeros(1), np.zeros(1)),
            ]
            if started:
                posted[0].Startall(posted)
            for request in posted:
                copy = MPI.Prequest(request)
                copy.Wait()
                copy.Free()
        if not started:
            raise ValueError("after the copies were freed")

    call = SpmdCall("ab", "a call", 1, tuple(range(end.size)))
    fresh: Any = types.SimpleNamespace(get=lambda *_: MPI.COMM_WORLD.Dup())
    for started in (False, True):
        call.function = functools.partial(free_copies, started=started)
        assert ("error" in run(call, fresh, end.rank)) == (not started)
        polling.release()
    # MPI gives the handles to what is made next.
    for _ in range(20):
        got = [np.zeros(1) for _ in range(50)]
        requests = [alone.Isend(np.full(1, float(tag)), 0, tag) for tag in range(50)]
        requests += [alone.Irecv(got[tag], 0, tag) for tag in range(50)]
        polling.release()
        MPI.Request.Waitall(requests)
        assert np.concatenate(got).tolist() == list(range(50))


def test_a_request_whose_copy_was_freed_is_left_alone(untidy: World) -> None:
    untidy.run(a_copy_that_is_freed_leaves_a_request_alone)


async def what_a_thread_gave_up_outlives_the_thread(end: End) -> None:
    from mpi4py import MPI

    from workbench.mpi import polling

    comm, buffer = MPI.COMM_WORLD.Dup(), np.zeros(1)
    kept = weakref.ref(buffer)
    thread = threading.Thread(target=polling.keep_alive, args=[comm.Irecv(buffer, left(comm)), buffer])
    thread.start()
    thread.join()
    del thread, buffer
    polling.release()
    assert kept() is not None
    comm.Barrier()
    comm.Send(np.ones(1), right(comm))
    while kept() is not None:
        polling.release()


def test_what_a_thread_gave_up_outlives_the_thread(untidy: World) -> None:
    untidy.run(what_a_thread_gave_up_outlives_the_thread)
