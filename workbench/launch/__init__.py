"""How a cluster's job and its MPI world are started.

Doors: `allocation`, `command`, `interface`, `jobqueue`, `launchers`, `mpi_library`, `multinode`, `options`, `probe`.
"""
