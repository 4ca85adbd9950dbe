"""What each operation sends is counted to the byte: every expectation is written out by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from support.counted_collectives import buffers, neighbors, objects, objects_of_neighbors, ring, three_ways
from support.counted_communicators import makers
from support.counted_messages import messages
from support.counting import LATER, OTHERS, RANKS, RING, Case, ahead, behind, check, of, pickled, text, times, z
from support.world import on_ranks

from workbench.mpi.counters import COLLECTIVE, MAKERS, NEIGHBORS, OPERATIONS

if TYPE_CHECKING:
    from support.ends import End

pytestmark = pytest.mark.parametrize("world", ["4-tls"], indirect=True)


@on_ranks
async def test_operations_of_all_ranks_are_counted_to_the_byte(end: End):
    await check(end, three_ways(buffers()))


@on_ranks
async def test_operations_of_neighbors_are_counted_to_the_byte(end: End):
    await check(end, three_ways(neighbors()), ring)


@on_ranks
async def test_neighbors_on_the_edge_and_on_both_sides(end: End):
    def open_line(comm: Any) -> None:
        comm.Create_cart([4]).Neighbor_allgather(z(1), z(2))

    def alone(comm: Any) -> None:
        comm.Create_cart([4, 1], periods=[False, True]).neighbor_allgather(None)

    def twice(comm: Any) -> None:
        comm.Create_cart([2, 2], periods=[True, True]).Neighbor_alltoall(z(4), z(4))

    def directed(comm: Any) -> None:
        made = comm.Create_dist_graph_adjacent([(comm.rank - 1) % 4], [(comm.rank + 1) % 4])
        made.Neighbor_alltoall(z(3), z(3))

    line = [(0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2)]
    square = [(0, 2), (0, 1), (1, 3), (1, 0), (2, 0), (2, 3), (3, 1), (3, 2)]
    none = pickled(None)
    cases = {
        "Neighbor_allgather on a line": (open_line, of(line, 8)),
        "neighbor_allgather of oneself": (alone, of(line, none)),
        "Neighbor_alltoall twice": (twice, times(2, of(square, 8))),
        "Neighbor_alltoall of a graph": (directed, of(RING, 24)),
    }
    await check(end, cases)


@on_ranks
async def test_objects_are_counted_by_the_bytes_of_their_pickles(end: End):
    await check(end, objects())
    await check(end, objects_of_neighbors(), ring)


@on_ranks
async def test_messages_from_rank_to_rank_are_counted_to_the_byte(end: End):
    await check(end, messages())


@on_ranks
async def test_a_rank_that_a_division_has_given_is_taken_as_mpi4py_takes_it(end: End):
    def halves(comm: Any) -> None:
        other = (comm.rank + 4 / 2) % 4
        comm.Send(z(1), other)
        comm.Recv(z(1), other)

    await check(end, {"Send": (halves, of([(rank, (rank + 2) % 4) for rank in RANKS], 8))})


@on_ranks
async def test_messages_to_oneself_are_counted_and_those_to_nobody_are_not(end: End):
    from mpi4py import MPI

    def oneself(comm: Any) -> None:
        requests = [comm.Isend(z(2), comm.rank), comm.Irecv(z(2), comm.rank)]
        requests[0].Waitall(requests)
        comm.sendrecv(text(1), comm.rank, source=comm.rank)

    def nobody(comm: Any) -> None:
        comm.Send(z(2), MPI.PROC_NULL)
        comm.send((each for each in "no pickle"), MPI.PROC_NULL)
        comm.isend((each for each in "no pickle"), MPI.PROC_NULL).wait()
        comm.Sendrecv(z(2), MPI.PROC_NULL, recvbuf=z(2), source=MPI.PROC_NULL)

    alone = {(rank, rank): [16, pickled(text(1))] for rank in RANKS}
    await check(end, {"sendrecv": (oneself, alone), "Send": (nobody, {})})


@on_ranks
async def test_bytes_are_counted_however_a_message_is_told(end: End):
    from mpi4py import MPI

    place, doubles = MPI.IN_PLACE, MPI.DOUBLE
    spaced = doubles.Create_vector(2, 1, 3).Commit()

    def ahead_of(message: Any) -> Callable[[Any], None]:
        def case(comm: Any) -> None:
            expected = comm.Irecv(z(30), behind(comm))
            comm.Send(message, ahead(comm))
            expected.Wait()

        return case

    def counts(comm: Any) -> Any:
        return [z(10), [1, 2, 3, 4]]

    def scatter_counts(comm: Any) -> None:
        comm.Scatterv([z(7), MPI.DOUBLE] if comm.rank == 0 else None, z(2 if comm.rank < 3 else 1))

    cases: dict[str, Case] = {
        "Send of items": (ahead_of([z(20), 5]), of(RING, 40)),
        "Send from a displacement": (ahead_of([z(20), (3, 2), doubles]), of(RING, 24)),
        "Send of a type": (ahead_of([z(20), "f"]), of(RING, 160)),
        "Send of a type with gaps": (ahead_of([z(20), 2, spaced]), of(RING, 32)),
        "Send of nothing": (ahead_of(z(0)), of(RING, 0)),
        "Bcast of a type": (lambda c: c.Bcast([z(20), 3, spaced], 1), of([(1, 0), (1, 2), (1, 3)], 48)),
        "Bcast by name": (lambda c: c.Bcast(buf=z(2), root=2), of([(2, 0), (2, 1), (2, 3)], 16)),
        "Bcast of much": (lambda c: c.Bcast(z(600_000), 1), of([(1, 0), (1, 2), (1, 3)], 4_800_000)),
        "Allreduce of much": (lambda c: c.Allreduce(z(600_000), z(600_000)), of(OTHERS, 4_800_000)),
        "Allreduce in place": (lambda c: c.Allreduce(place, z(6)), of(OTHERS, 48)),
        "Reduce in place": (
            lambda c: c.Reduce(place if c.rank == 0 else z(6), z(6) if c.rank == 0 else None),
            of([(1, 0), (2, 0), (3, 0)], 48),
        ),
        "Gather in place": (
            lambda c: c.Gather(place if c.rank == 0 else z(2), z(8) if c.rank == 0 else None),
            of([(1, 0), (2, 0), (3, 0)], 16),
        ),
        "Scatter in place": (
            lambda c: c.Scatter([z(12), 3] if c.rank == 0 else None, place if c.rank == 0 else z(3)),
            of([(0, 1), (0, 2), (0, 3)], 24),
        ),
        "Scatterv of what does not come out even": (scatter_counts, {(0, 1): [16], (0, 2): [16], (0, 3): [8]}),
        "Allgather in place": (lambda c: c.Allgather(place, z(12)), of(OTHERS, 24)),
        "Allgatherv in place": (
            lambda c: c.Allgatherv(place, counts(c)),
            of(OTHERS, lambda source, _: [8, 16, 24, 32][source]),
        ),
        "Alltoall in place": (lambda c: c.Alltoall(place, z(8)), of(OTHERS, 16)),
        "Alltoallv in place": (lambda c: c.Alltoallv(place, [z(12), 3]), of(OTHERS, 24)),
        "Alltoallw in place": (
            lambda c: c.Alltoallw(place, [z(8), ([2] * 4, [0, 16, 32, 48]), [doubles] * 4]),
            of(OTHERS, 16),
        ),
        "Reduce_scatter_block in place": (lambda c: c.Reduce_scatter_block(place, z(8)), of(OTHERS, 16)),
        "Reduce_scatter that asks": (
            lambda c: c.Reduce_scatter(z(10), z(c.rank + 1)),
            of(OTHERS, lambda _, target: [8, 16, 24, 32][target]),
        ),
        "Ireduce_scatter that asks": (
            lambda c: c.Ireduce_scatter(z(10), z(c.rank + 1)).Wait(),
            of(OTHERS, lambda _, target: [8, 16, 24, 32][target]),
        ),
        "Reduce_scatter in place": (
            lambda c: c.Reduce_scatter(place, z(10), [1, 2, 3, 4]),
            of(OTHERS, lambda _, target: [8, 16, 24, 32][target]),
        ),
        "Scan in place": (lambda c: c.Scan(place, z(2)), of(LATER, 16)),
        "Exscan in place": (lambda c: c.Exscan(place, z(2)), of(LATER, 16)),
    }
    await check(end, cases)
    spaced.Free()


@on_ranks
async def test_there_is_a_case_for_every_operation(end: End):
    from mpi4py import MPI

    from workbench.mpi import communicator, request

    cases = {*three_ways(buffers()), *three_ways(neighbors()), *objects(), *objects_of_neighbors(), *messages()}
    cases |= {*makers(), "Create_group"}
    assert cases == set(OPERATIONS) - {"other"}
    assert len(set(OPERATIONS)) == len(OPERATIONS)
    # they return, set or end something, or are made of operations that are counted
    plain = {
        "Free",
        "Revoke",
        "Set_errhandler",
        "Disconnect",
        "Abort",
        "Spawn",
        "Spawn_multiple",
        "Improbe",
        "improbe",
        "Idup_with_info",
        "Attach_buffer",
    }
    plain |= {"Test", "test", "free", "fromhandle", "Get_attr", "Cancel"}
    for ours, theirs in (
        (communicator.CartesianCommunicator, MPI.Cartcomm),
        (request.Prequest, MPI.Prequest),
        (request.Message, MPI.Message),
    ):
        methods = {name for name in dir(theirs) if not name.startswith("_") and callable(getattr(theirs, name))}
        own = {name for name in methods if any(name in vars(each) for each in ours.__mro__ if _is_ours(each))}
        assert own - plain <= cases, own - plain - cases
    assert {*COLLECTIVE, *NEIGHBORS, *MAKERS} <= cases


def _is_ours(kind: type) -> bool:
    return kind.__module__.startswith("workbench.")
