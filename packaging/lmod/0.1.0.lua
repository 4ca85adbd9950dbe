local root = "/apps/mpi-workbench/0.1.0"

help([[MPI Workbench: MPI worlds that are Dask clusters, from a notebook. `workbench doctor` checks the installation.]])
whatis("Name: mpi-workbench")
whatis("Version: 0.1.0")
whatis("Description: Start an MPI world that is a Dask cluster from a notebook, and see what every rank does.")

-- The MPI that mpi4py loads, and whose mpiexec starts the ranks.
depends_on("openmpi")

prepend_path("PATH", pathJoin(root, "bin"))
