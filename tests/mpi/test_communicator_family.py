"""Communicators that are made from ours are ours, and belong together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.raised import raises
from support.two_ways import communicators, same
from support.world import on_ranks

from workbench.errors import CollectiveFailed, InvalidRequest

if TYPE_CHECKING:
    from support.ends import End


@on_ranks
async def test_communicators_are_made_as_mpi4py_makes_them(end: End):
    from mpi4py import MPI

    def told(comm: Any) -> Any:
        return (comm.rank, comm.size, comm.allgather(comm.rank)) if comm != MPI.COMM_NULL else None

    def group(comm: Any) -> Any:
        everyone = comm.Get_group()
        chosen = everyone.Incl([comm.size - 1, 0])
        made = comm.Create(chosen)
        return told(made)

    def own_group(comm: Any) -> Any:
        alone = comm.Get_group().Incl([comm.rank])
        return told(comm.Create_group(alone, tag=comm.rank))

    def later(comm: Any) -> Any:
        made, request = comm.Idup()
        request.Wait()
        return told(made)

    def grid(comm: Any) -> Any:
        cart = comm.Create_cart([comm.size // 2, 2], periods=[True, False])
        sums = np.zeros(4)
        cart.Neighbor_allgather(np.full(1, float(cart.rank)), sums)
        row = cart.Sub([False, True])
        return cart.dims, cart.coords, sums, told(row), row.dims, cart.neighbor_allgather(cart.rank), cart.Shift(0, 1)

    def vectors(comm: Any) -> Any:
        cart = comm.Create_cart([comm.size], periods=[True])
        got, more, most = np.zeros(2), np.zeros(2), np.zeros(2)
        cart.Neighbor_alltoall(np.array([cart.rank, 10.0]), got)
        cart.Neighbor_allgatherv(np.full(1, float(cart.rank)), [more, [1, 1]])
        cart.Neighbor_alltoallv([np.array([cart.rank, 20.0]), [1, 1]], [most, [1, 1]])
        last, types = np.zeros(2), [MPI.DOUBLE] * 2
        cart.Neighbor_alltoallw([np.array([cart.rank, 30.0]), ([1, 1], [0, 8]), types], [last, ([1, 1], [0, 8]), types])
        request = cart.Ineighbor_allgather(np.full(1, float(cart.rank)), later := np.zeros(2))
        request.Wait()
        return got, more, most, last, later, cart.neighbor_alltoall([(cart.rank, 0), (cart.rank, 1)])

    def graph(comm: Any) -> Any:
        made = comm.Create_graph(list(range(1, comm.size + 1)), [(r + 1) % comm.size for r in range(comm.size)])
        return made.neighbors, made.neighbor_allgather(made.rank) if comm.size == 2 else None

    def distributed(comm: Any) -> Any:
        before, after = [(comm.rank - 1) % comm.size], [(comm.rank + 1) % comm.size]
        made = comm.Create_dist_graph_adjacent(before, after)
        more = comm.Create_dist_graph([comm.rank], [1], after)
        return made.neighbor_allgather(made.rank), more.neighbor_alltoall([f"from {made.rank}"]), made.inedges

    await same(
        end,
        {
            "Dup": lambda c: told(c.Dup()),
            "Clone": lambda c: told(c.Clone()),
            "Split": lambda c: told(c.Split(c.rank % 2, -c.rank)),
            "Split of some": lambda c: told(c.Split(MPI.UNDEFINED if c.rank else 0)),
            "Split of a split": lambda c: told(c.Split(0, -c.rank).Split(c.rank % 2)),
            "Split_type": lambda c: told(c.Split_type(MPI.COMM_TYPE_SHARED)),
        }
        | {each.__name__: each for each in (group, own_group, later, grid, vectors, graph, distributed)},
    )


@on_ranks
async def test_what_is_made_from_ours_is_ours_and_shares_its_watch(end: End):
    from workbench.mpi.communicator import Communicator

    plain, ours = communicators()
    cart = ours.Create_cart([ours.size])
    made = [ours.Dup(), ours.Split(ours.rank), ours.Split().Dup(), cart, cart.Sub([True]), cart.Dup()]
    assert all(isinstance(each, Communicator) for each in made)
    assert all(each.watch is ours.watch for each in made)
    assert isinstance(cart.Dup(), type(cart))
    ours.free_derived()
    assert not any(made)
    plain.Free()


@on_ranks
async def test_only_what_was_made_can_be_freed(end: End):
    plain, ours = communicators()
    made = ours.Dup()
    with raises(InvalidRequest, given="Free"):
        ours.Free()
    with pytest.raises(InvalidRequest):
        ours.free()
    with raises(InvalidRequest, given="Disconnect"):
        ours.Disconnect()
    made.Free()
    assert not made
    ours.Dup().Disconnect()
    assert ours.allreduce(1) == ours.size
    ours.free_derived()
    plain.Free()


@on_ranks
async def test_abort_ends_the_call_and_not_the_world(end: End):
    plain, ours = communicators()
    with pytest.raises(CollectiveFailed):
        ours.Abort(3)
    assert plain.allreduce(1) == plain.size
    plain.Free()


@on_ranks
async def test_every_operation_that_waits_is_ours(end: End):
    from mpi4py import MPI

    from workbench.mpi import communicator

    # they return, set or cancel something on this rank, or are documented as mpi4py's own
    local = {
        "Ack_failed", "Call_errhandler", "Cart_map", "Compare", "Create_errhandler",
        "Create_from_group", "Create_keyval", "Delete_attr", "Detach_buffer", "Flush_buffer", "Free_keyval",
        "Get_attr", "Get_cart_rank", "Get_coords", "Get_dim", "Get_dims", "Get_dist_neighbors",
        "Get_dist_neighbors_count", "Get_errhandler", "Get_failed", "Get_group", "Get_info", "Get_name",
        "Get_neighbors", "Get_neighbors_count", "Get_parent", "Get_rank", "Get_size", "Get_topo", "Get_topology",
        "Graph_map", "Iprobe", "Is_inter", "Is_intra", "Is_revoked", "Join", "Set_attr", "Set_info", "Set_name",
        "Shift", "f2py", "free", "fromhandle", "fromint", "iprobe", "py2f", "toint",
        "Accept", "Connect", "Create_intercomm", "Spawn", "Spawn_multiple",
    }  # fmt: skip
    for theirs, ours in (
        (MPI.Intracomm, communicator.Communicator),
        (MPI.Cartcomm, communicator.CartesianCommunicator),
        (MPI.Graphcomm, communicator.GraphCommunicator),
        (MPI.Distgraphcomm, communicator.DistgraphCommunicator),
    ):
        methods = {name for name in dir(theirs) if not name.startswith("_") and callable(getattr(theirs, name))}
        kept = {name for name in methods if getattr(ours, name) is getattr(theirs, name)}
        kept |= {name for name in methods if getattr(getattr(ours, name), "__self__", None) is ours} & local
        assert kept <= local, kept - local


@on_ranks
async def test_attributes_of_mpi_are_found_on_every_communicator(end: End):
    from mpi4py import MPI

    _, comm = communicators()
    for keyval in (MPI.TAG_UB, MPI.WTIME_IS_GLOBAL, MPI.LASTUSEDCODE):
        assert comm.Get_attr(keyval) == comm.Dup().Get_attr(keyval) == MPI.COMM_WORLD.Get_attr(keyval)
    assert comm.Get_attr(MPI.TAG_UB) > 0
    own = MPI.Comm.Create_keyval()
    assert comm.Get_attr(own) is None
    comm.Set_attr(own, "mine")
    assert comm.Get_attr(own) == "mine"
