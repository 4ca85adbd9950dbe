"""Pi by the midpoint rule: each rank adds its part of the intervals."""

import argparse

from mpi4py import MPI

comm = MPI.COMM_WORLD


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-n", type=int, default=1000, help="number of intervals")
    n = comm.bcast(parser.parse_args().n)
    part = sum(4 / (1 + ((i + 0.5) / n) ** 2) for i in range(comm.rank, n, comm.size)) / n
    pi = comm.reduce(part, op=MPI.SUM)
    if comm.rank == 0:
        print(f"pi is about {pi:.6f}, with {n} intervals on {comm.size} ranks")


if __name__ == "__main__":
    main()
