"""Cells of notebooks on all ranks (``%%mpi``): in the notebook, on the head and on the ranks.

Doors: `engine_client`, `head`, `magics`, `protocol`, `rank`.
"""

PRELOAD = ("workbench.cells.engine",)
"""Modules that the first cell imports on each rank."""
