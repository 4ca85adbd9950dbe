"""Cells of notebooks on all ranks (``%%mpi``): in the notebook, on the head and on the ranks."""
