"""On any communicator messages are counted by ranks of the world, and ranks report when they have met."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from support.counted_communicators import makers
from support.counting import LATER, ahead, behind, both, check, of, pickled, z
from support.two_ways import communicators
from support.world import on_ranks

from workbench.mpi.counters import STEP, Counters

if TYPE_CHECKING:
    from support.ends import End

pytestmark = pytest.mark.parametrize("world", ["4-tls"], indirect=True)


@on_ranks
async def test_what_is_sent_on_any_communicator_goes_to_ranks_of_the_world(end: End):
    from mpi4py import MPI

    def create_group(comm: Any) -> None:
        # of two at a time: each pair makes its own, under the same tag
        pair = [3, 1] if comm.rank % 2 else [2, 0]
        comm.Create_group(comm.Get_group().Incl(pair)).Bcast(z(1))

    def turned(comm: Any) -> None:
        other = comm.Split(0, -comm.rank)  # rank r of it is rank 3 - r of the world
        assert MPI.COMM_WORLD.rank == 3 - other.rank
        other.Send(z(3), ahead(other)) if other.rank else other.Recv(z(3), 3)
        other.Send(z(3), 1) if other.rank == 0 else other.Recv(z(3), behind(other))
        other.Scan(z(1), z(1))
        row = other.Create_cart([2, 2]).Sub([False, True])
        row.Alltoall(z(4), z(4))

    # from r to r + 1 there is from 3 - r to 2 - r here
    along = of([(3, 2), (2, 1), (1, 0), (0, 3)], 24)
    earlier = of([(target, source) for source, target in LATER], 8)
    rows = of([(3, 2), (2, 3), (1, 0), (0, 1)], 16)
    cases = {"Create_group": (create_group, of([(2, 0), (3, 1)], 8))}
    await check(end, makers() | cases | {"Split of all": (turned, both(both(along, earlier), rows))})


@on_ranks
async def test_a_call_on_some_ranks_sends_to_ranks_of_the_world(end: End):
    from mpi4py import MPI

    from workbench.mpi.call_state import CallState
    from workbench.mpi.communicator import Communicator
    from workbench.mpi.communicator_cache import CommunicatorCache

    base = MPI.COMM_WORLD.Dup()
    if base.rank in {1, 3}:
        counters = Counters()
        comm = Communicator(CommunicatorCache(base, "counted").get(0, [3, 1], lambda: None), CallState(counters), 5)
        comm.Bcast(z(4), 0)
        comm.send("x", comm.rank)
        counters.flush_uniform()
        assert counters.sent == {base.rank: [pickled("x"), 1]} | ({1: [32, 1]} if base.rank == 3 else {})
        assert [meeting[:3] for meeting in counters.synchronizations] == [(5, STEP, "Bcast")]
    await end.gather()
    base.Free()


@on_ranks
async def test_ranks_that_meet_say_so_by_the_same_key_and_number(end: End):
    from mpi4py import MPI

    plain, ours = communicators()
    ours.key, ours.watch.counters = 77, Counters()
    began = time.monotonic()
    ours.Barrier()
    ours.Ibarrier().Wait()
    ours.allreduce(1)
    halves = ours.Split(ours.rank % 2)
    halves.Bcast(z(1))
    again = ours.Split(ours.rank % 2)
    again.Bcast(z(1))
    duplicate, request = halves.Idup()
    request.Wait()
    duplicate.Barrier()
    if ours.rank in {1, 3}:  # not for the others to number
        ours.Create_group(ours.Get_group().Incl([3, 1])).Barrier()
    ours.Barrier()
    told = plain.allgather(
        [(key, number // STEP, what) for key, number, what, *_ in ours.watch.counters.synchronizations]
    )
    entered = [meeting[3:] for meeting in ours.watch.counters.synchronizations]
    assert all(began <= one <= other <= time.monotonic() for one, other in entered)
    on_ours = [(77, 1, "Barrier"), (77, 3, "allreduce"), (77, 4, "Split"), (77, 5, "Split"), (77, 6, "Barrier")]
    assert [[each for each in own if each[0] == 77] for own in told] == [on_ours] * 4
    others = [[each for each in own if each[0] != 77] for own in told]
    assert others[0] == others[2]
    assert others[1] == others[3]
    assert [each[1:] for each in others[0]] == [(1, "Bcast"), (1, "Bcast"), (1, "Barrier")]
    assert [each[1:] for each in others[1]] == [(1, "Bcast"), (1, "Bcast"), (1, "Barrier"), (1, "Barrier")]
    keys = [key for key, _, _ in (*others[0], *others[1])]
    assert len(set(keys)) == 7
    assert all(0 < key < 2**63 for key in keys)
    assert MPI.COMM_WORLD.rank == ours.rank
    ours.free_derived()
    plain.Free()


@on_ranks
async def test_who_sends_and_who_receives_a_message_meet(end: End):
    from mpi4py import MPI

    plain, ours = communicators()
    turned = ours.Split(0, -ours.rank)  # rank r of it is rank 3 - r of the world
    counters = ours.watch.counters = Counters()
    nobody = MPI.PROC_NULL
    if turned.rank == 1:
        turned.Send(z(1), 2)
        turned.isend("two", 2).wait()
        turned.Isend(z(1), 2, 8).Wait()
        turned.send("four", 2, 6)
        turned.Ssend(z(1), 2, 4)
        turned.Sendrecv(z(1), 2, 5, z(1), 2)
        turned.Send(z(1), nobody)
        turned.send("last", 2)
    elif turned.rank == 2:
        turned.Recv(z(1), MPI.ANY_SOURCE)
        assert turned.recv() == "two"
        later, object_ = turned.Irecv(z(1), 1, 8), turned.irecv(None, 1, 6)
        turned.Recv(z(1), 1, 4)
        later.Wait()
        assert object_.wait() == "four"
        turned.Sendrecv(z(1), 1, 0, z(1), 1, 5)
        turned.Recv(z(1), nobody)
        # the sender of this message is not known before, and so those of later ones are not known either
        unknown = turned.Irecv(z(1), tag=9)
        assert turned.recv(source=1, tag=0) == "last"
        unknown.Cancel()
        unknown.Wait()
    told = plain.allgather(counters.synchronizations)
    assert told[0] == told[3] == []
    sender, receiver = ([(each[1] // STEP, each[2]) for each in told[3 - rank]] for rank in (1, 2))
    sends = [(1, "Send"), (2, "isend"), (3, "Isend"), (4, "send"), (5, "Ssend"), (6, "Sendrecv"), (7, "send")]
    assert sorted(sender) == sorted([*sends, (1, "Sendrecv")])
    assert sorted(receiver) == sorted([(1, "Recv"), (2, "recv"), (5, "Recv"), (6, "Sendrecv"), (1, "Sendrecv")])
    forth = {each[0] for each in told[2] if each[2] != "Sendrecv"}
    back = {each[0] for each in told[2] if each[2] == "Sendrecv"} - forth
    assert len(forth) == len(back) == 1
    assert {each[0] for each in told[1]} == forth | back
    for _, _, what, entered, left in (*told[1], *told[2]):
        assert left >= entered
        assert left == entered or what not in {"isend", "Isend"}
    ours.free_derived()
    plain.Free()


@on_ranks
async def test_of_many_meetings_all_ranks_keep_some_that_they_have_in_common(end: End):
    plain, ours = communicators()
    ours.watch.counters = Counters()
    for number in range(1000):
        ours.Barrier()
        if number == 300 and ours.rank == 1:  # a sample is taken
            ours.watch.counters.take_synchronizations()
    kept = plain.allgather([meeting[1] for meeting in ours.watch.counters.synchronizations])
    assert all(5 <= len(each) <= 32 for each in kept)
    assert len(set(kept[0]).intersection(*kept[1:])) >= 5
    plain.Free()


@on_ranks
async def test_a_call_that_is_ended_has_been_counted_and_has_sent_nothing(end: End):
    from workbench.mpi.call_state import CallCancelled

    plain, ours = communicators()
    counters = ours.watch.counters = Counters()
    if ours.rank == 0:
        threading.Timer(0.01, ours.watch.end, ["because"]).start()
        with pytest.raises(CallCancelled):
            ours.Allgather(z(2), z(8))
        with pytest.raises(CallCancelled):
            ours.Barrier()
        assert [*counters.operations] == ["Allgather"]
        assert counters.operations["Allgather"][:2] == [1, 0]
        assert sum(counters.sizes) == 0
        assert ours.watch.operation is None
    plain.Barrier()
