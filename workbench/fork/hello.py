"""``python -m workbench.fork.hello NAME ID``: a test program that sums the ranks of its world; forked or not."""

from __future__ import annotations

import json
from typing import Any

from workbench.gpu.devices import is_gpu_aware
from workbench.host import network


def main(daemon: int | None = None, **_: Any) -> None:
    """Sum the ranks of the world; rank 0 prints the size, the sum, the thread level, and whether it was forked."""
    import mpi4py

    mpi4py.rc.initialize = False
    from mpi4py import MPI

    level = MPI.Init_thread(MPI.THREAD_MULTIPLE)
    world = MPI.COMM_WORLD
    total = world.allreduce(world.rank + 1)
    if world.rank == 0:
        result = {
            "hello": world.size,
            "total": total,
            "threads": next(name for name in dir(MPI) if name.startswith("THREAD_") and getattr(MPI, name) == level),
            "forked": daemon is not None,
            "gpu_aware": is_gpu_aware(MPI),
            # A forked rank is not below its launcher.
            "ports": [] if daemon else network.tried(),
        }
        print(json.dumps(result), flush=True)  # noqa: T201  (the output is the purpose of the program)
    MPI.Finalize()


if __name__ == "__main__":
    main()
