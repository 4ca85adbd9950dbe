"""The temperature of a plate with one hot edge: Jacobi iterations on strips of rows, with an exchange of halos."""

import numpy as np
from mpi4py import MPI


def main(rows=32, columns=32, tolerance=1e-3):
    comm = MPI.COMM_WORLD.Create_cart([MPI.COMM_WORLD.size])
    above, below = comm.Shift(0, 1)
    own = rows // comm.size + (comm.rank < rows % comm.size)
    grid = np.zeros((own + 2, columns))  # with a halo of one row on each side
    if above == MPI.PROC_NULL:
        grid[0] = 1
    steps, change = 0, 1.0
    while change > tolerance:
        comm.Sendrecv(grid[1], above, recvbuf=grid[-1], source=below)
        comm.Sendrecv(grid[-2], below, recvbuf=grid[0], source=above)
        new = grid.copy()
        new[1:-1, 1:-1] = (grid[:-2, 1:-1] + grid[2:, 1:-1] + grid[1:-1, :-2] + grid[1:-1, 2:]) / 4
        change = comm.allreduce(float(abs(new - grid).max()), op=MPI.MAX)
        grid, steps = new, steps + 1
    mean = comm.allreduce(float(grid[1:-1].sum())) / (rows * columns)
    if comm.rank == 0:
        print(f"{steps} steps, mean temperature {mean:.4f}")
    comm.Free()


if __name__ == "__main__":
    main()
