"""Cells of notebooks on all ranks (``%%mpi``): in the notebook, on the head and on the ranks."""

PRELOAD = ("workbench.cells.engine",)
"""Modules that the first cell imports on each rank."""
