"""Operations that make communicators, and what a broadcast on these sends: by their names."""

from __future__ import annotations

from typing import Any

import numpy as np

from support.counting import Case, ahead, behind, of, z


def makers() -> dict[str, Case]:
    from mpi4py import MPI

    def group(comm: Any) -> Any:
        return comm.Get_group().Incl([3, 1])

    def duplicate(comm: Any) -> None:
        made, request = comm.Idup()
        request.Wait()
        made.Bcast(z(1))

    def shrink_later(comm: Any) -> None:
        comm.Ishrink()[1].Wait()

    def create_group(comm: Any) -> None:
        if comm.rank in {1, 3}:
            comm.Create_group(group(comm)).Bcast(z(1))

    def create(comm: Any) -> None:
        if (made := comm.Create(group(comm))) != MPI.COMM_NULL:
            made.Bcast(z(1))

    from_0 = of([(0, 1), (0, 2), (0, 3)], 8)
    cases: dict[str, Case] = {
        "Dup": (lambda c: c.Dup().Bcast(z(1)), from_0),
        "Dup_with_info": (lambda c: c.Dup_with_info(MPI.INFO_NULL).Bcast(z(1)), from_0),
        "Clone": (lambda c: c.Clone().Bcast(z(1)), from_0),
        "Idup": (duplicate, from_0),
        "Create": (create, of([(3, 1)], 8)),
        "Split": (lambda c: c.Split(c.rank % 2, -c.rank).Bcast(z(1)), of([(2, 0), (3, 1)], 8)),
        "Split_type": (
            lambda c: c.Split_type(MPI.COMM_TYPE_SHARED, -c.rank).Bcast(z(1)),
            of([(3, 0), (3, 1), (3, 2)], 8),
        ),
        "Create_cart": (lambda c: c.Create_cart([2, 2]).Bcast(z(1)), from_0),
        "Sub": (lambda c: c.Create_cart([2, 2]).Sub([False, True]).Bcast(z(1)), of([(0, 1), (2, 3)], 8)),
        "Create_graph": (lambda c: c.Create_graph([1, 2, 3, 4], [1, 2, 3, 0]).Bcast(z(1)), from_0),
        "Create_dist_graph": (lambda c: c.Create_dist_graph([c.rank], [1], [ahead(c)]).Bcast(z(1)), from_0),
        "Create_dist_graph_adjacent": (
            lambda c: c.Create_dist_graph_adjacent([behind(c)], [ahead(c)]).Bcast(z(1)),
            from_0,
        ),
        "Agree": (lambda c: c.Agree(1), {}),
        "Iagree": (lambda c: c.Iagree(np.ones(1, "i")).Wait(), {}),
        "Shrink": (lambda c: c.Shrink(), {}),
        "Ishrink": (shrink_later, {}),
    }
    return cases
