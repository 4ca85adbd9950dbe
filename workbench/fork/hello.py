"""``python -m workbench.fork.hello NAME ID``: a rank that adds up ranks and says so; forked or not."""

from __future__ import annotations

import json
from typing import Any


def main(daemon: int | None = None, **_: Any) -> None:
    """Add up the ranks of the world; rank 0 prints its size, the sum, the thread level, and whether it was forked."""
    import mpi4py

    mpi4py.rc.initialize = False
    from mpi4py import MPI

    level = MPI.Init_thread(MPI.THREAD_MULTIPLE)
    world = MPI.COMM_WORLD
    total = world.allreduce(world.rank + 1)
    if world.rank == 0:
        told = {"hello": world.size, "total": total, "threads": level, "forked": daemon is not None}
        print(json.dumps(told), flush=True)  # noqa: T201  (this is what it is for)
    MPI.Finalize()


if __name__ == "__main__":
    main()
