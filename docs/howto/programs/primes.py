"""The number of primes below a limit: rank 0 sends a range of numbers to each rank that is ready for one."""

import sys

from mpi4py import MPI

comm = MPI.COMM_WORLD


def distribute(limit, step=100):
    ranges, status = iter(range(2, limit, step)), MPI.Status()
    total, working = 0, comm.size - 1
    while working:
        total += comm.recv(source=MPI.ANY_SOURCE, status=status)
        begin = next(ranges, None)
        comm.send(begin and (begin, min(begin + step, limit)), dest=status.Get_source())
        working -= begin is None
    return total


def work():
    found = 0
    while True:
        comm.send(found, dest=0)
        numbers = comm.recv(source=0)
        if numbers is None:
            return
        found = sum(all(n % divisor for divisor in range(2, int(n**0.5) + 1)) for n in range(*numbers))


if comm.size < 2:
    sys.exit("primes.py needs two or more processes")
if comm.rank == 0:
    limit = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    print(f"{distribute(limit)} primes below {limit}")
else:
    work()
MPI.Finalize()
