"""The IPython of this process, a notebook's kernel most often, if there is one."""

from __future__ import annotations

import sys
from typing import Any


def cell_number() -> int | None:
    """Return the number of the cell that runs, as its ``In [n]`` has it; None outside of IPython."""
    return getattr(_shell(), "execution_count", None)


def is_kernel() -> bool:
    """Tell whether this process is the kernel of a notebook, not IPython in a terminal or another program."""
    return getattr(_shell(), "kernel", None) is not None


def _shell() -> Any:
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None else None
