"""How a cluster's job and its MPI world are started."""
