"""The IPython of this process, a notebook's kernel most often, if there is one."""

from __future__ import annotations

import sys


def cell_number() -> int | None:
    """Return the number of the cell that runs, as its ``In [n]`` has it; None outside of IPython."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "execution_count", None)
