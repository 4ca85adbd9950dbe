"""The IPython of this process, usually the kernel of a notebook, if one exists."""

from __future__ import annotations

import os
import socket
import sys
import uuid
from pathlib import Path
from typing import Any

SERVER = "WORKBENCH_SERVER"
"""Variable of kernels whose Jupyter server shows dashboards: its pid and its base URL, e.g. ``4711 /user/me/``."""
_PROCESS = uuid.uuid4().hex


def cell_number() -> int | None:
    """Return the number ``n`` of the running cell ``In [n]``, or None outside of IPython."""
    return getattr(_shell(), "execution_count", None)


def identity() -> str:
    """Return a name for this notebook, which stays when its kernel restarts, or for the process of another program."""
    if not is_kernel():
        return _PROCESS
    from ipykernel.connect import get_connection_file

    try:
        return f"{socket.gethostname()}:{Path(get_connection_file()).stem}"
    except RuntimeError:  # a kernel inside another program, or one that is not of ipykernel
        return _PROCESS


def is_kernel() -> bool:
    """Return whether this process is the kernel of a notebook, not IPython in a terminal or another program."""
    return getattr(_shell(), "kernel", None) is not None


def dashboard_path(name: str) -> str:
    """Return the path of the dashboard of cluster `name` on this notebook's Jupyter server, or an empty string."""
    server, _, base = os.environ.get(SERVER, "").partition(" ")
    # Jupyter sets the pid of a kernel's parent. It excludes a variable inherited from an outer server.
    is_own_server = base and server == os.environ.get("JPY_PARENT_PID")
    return f"{base}workbench/dashboard/{name}/" if is_own_server else ""


def _shell() -> Any:
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None else None
