"""A program of a bench that goes wrong in the way that it is asked to."""

from __future__ import annotations

import threading


def measure(way):
    from mpi4py import MPI

    if MPI.COMM_WORLD.rank == 1:
        if way == "fail":
            raise ValueError("no such thing on rank 1")
        if way == "hang":
            threading.Event().wait()
    return MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.rank)
