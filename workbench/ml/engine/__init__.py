"""How a fit runs: on the ranks of an MPI communicator, on Dask workers, or in this process."""
