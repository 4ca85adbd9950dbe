"""A module of programs for ``mpiexec``: it keeps `MPI.COMM_WORLD`, and a communicator that it derives at its import."""

from mpi4py import MPI
from mpi4py.MPI import COMM_WORLD

comm = COMM_WORLD
everyone = comm.Dup()


def main(fail=None):
    """Return the size, the sum of all ranks, the same of what was derived at the import, and the size of a window."""
    if comm.rank == fail:
        raise ValueError("this rank does not come")
    sums = comm.allreduce(comm.rank), everyone.allreduce(1)
    window = MPI.Win.Allocate(8, comm=comm)
    group = window.Get_group()
    size = group.size
    group.Free()
    window.Free()
    return comm.size, *sums, size
