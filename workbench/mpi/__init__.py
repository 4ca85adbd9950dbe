"""The communicator of mpi4py, counted and able to be ended; the way of blocks to C and C++, and to Heat."""
