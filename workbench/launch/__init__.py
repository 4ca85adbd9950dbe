"""How a cluster's job and its MPI world are started.

Doors: `allocation`, `command`, `environment`, `interface`, `jobqueue`, `launchers`, `mpi_library`, `mpiexec`,
`multinode`, `network`, `options`, `probe`, `process_manager`, `slurm`, `slurm_parse`.
"""
