"""A search for the rows near the queries of each rank, with messages between neighboring ranks only.

Some queries of each rank visit all ranks in turn, with their result so far. All ranks search at the same time, each for
the queries that visit it. So the memory and the messages of a rank do not depend on the number of ranks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from workbench.ml.neighbors.search import RESULT, Result, Search

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

# A message has this part of `RESULT`, since a rank holds two of them, each also as a pickle.
_SHARE = 8


def find_in_ring(part: Any, search: Search, comm: Intracomm, _report: Any = None) -> None:
    """Find rows for the queries of the part of each rank, and keep the results in the part; runs on all ranks.

    Parameters
    ----------
    part
        The part of this rank, a `workbench.ml.neighbors.part.NeighborsPart`.
    search
        The search, without queries.
    comm
        The communicator of all parts, in the order of their rows.
    """
    total = part.query_range()[1]
    start, step, nbytes = 0, max(search.step // _SHARE, 1), RESULT // _SHARE
    if not total:
        part.add(start, search, search.nothing())
    # A rank without more queries still searches for those of the others.
    while comm.allreduce(start < total):
        result = _around(comm, part, search, part.own_queries(start, start + step))
        if start < total:
            part.add(start, search, result)
        start += step
        # The number of rows within a radius is not known before.
        step = min(step, max(1, step * nbytes // max(1, sum(array.nbytes for array in result))))


def _around(comm: Intracomm, part: Any, search: Search, queries: Any) -> Result:
    """Return the result for some queries of this rank, which visit all ranks."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    # The results of the ranks from that of the queries on, and of the ranks before: `Search.join` needs their order.
    later, earlier = search.nothing(), None
    for hop in range(comm.size):
        if queries.shape[0]:
            found = part.find(replace(search, queries=queries))
            if hop == 0:
                later = found
            elif hop <= comm.rank:
                later = search.join(later, found)
            else:
                earlier = found if earlier is None else search.join(earlier, found)
        # At the last rank only the result goes on.
        message = queries if hop < comm.size - 1 else None, later, earlier
        queries, later, earlier = comm.sendrecv(message, right, source=left)
    return later if earlier is None else search.join(earlier, later)
