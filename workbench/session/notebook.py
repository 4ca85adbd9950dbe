"""The IPython of this process, a notebook's kernel most often, if there is one."""

from __future__ import annotations

import os
import sys
from typing import Any

SERVER = "WORKBENCH_SERVER"
"""Variable of kernels whose Jupyter server shows dashboards: its process and its base URL, as ``4711 /user/me/``."""


def cell_number() -> int | None:
    """Return the number of the cell that runs, as its ``In [n]`` has it; None outside of IPython."""
    return getattr(_shell(), "execution_count", None)


def is_kernel() -> bool:
    """Tell whether this process is the kernel of a notebook, not IPython in a terminal or another program."""
    return getattr(_shell(), "kernel", None) is not None


def dashboard_path(name: str) -> str:
    """Return the path of a cluster's dashboard on the Jupyter server of this notebook; empty if there is none.

    Parameters
    ----------
    name
        Of the cluster.
    """
    server, _, base = os.environ.get(SERVER, "").partition(" ")
    # Jupyter tells each kernel the process that has started it. That of a server around another server is not meant.
    shows = base and server == os.environ.get("JPY_PARENT_PID")
    return f"{base}workbench/dashboard/{name}/" if shows else ""


def _shell() -> Any:
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None else None
