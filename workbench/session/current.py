"""The Dask client, the Dask worker and the notebook that this process has at present."""

from __future__ import annotations

import os
import socket
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.errors import HeadUnreachable, PlacementError
from workbench.hints import LISTED, Command
from workbench.session import moves

if TYPE_CHECKING:
    from distributed import Client, Worker


# Address of the head of the last used client, because Dask forgets a client that has lost its scheduler.
_last = ""


def current_client(client: Client | None = None) -> Client:
    """Return `client`, or the current one.

    Parameters
    ----------
    client : distributed.Client, optional
        A synchronous client that is connected. Default: the current client of Dask.

    Returns
    -------
    distributed.Client
        The client.

    Raises
    ------
    PlacementError
        If no client exists, or the client has another type, is closed or is asynchronous.
    HeadUnreachable
        If its cluster has ended or is not reachable.
    """
    global _last  # noqa: PLW0603  (for a message)
    from distributed import Client, get_client

    try:
        client = moves.followed(get_client() if client is None else client)
    except ValueError:
        client = moves.followed(None)
    if client is None:
        raise PlacementError(
            f"no client is connected to a cluster{_gone(_last)}.",
            hint=(
                "Start a cluster (",
                Command("start"),
                ", or MPICluster(...).get_client()) or pass client=.",
                *((" ", *LISTED) if _last else ()),
            ),
        )
    if not isinstance(client, Client):
        raise PlacementError(
            f"client={client!r:.80} is not a client. Pass a distributed.Client, for example the result of "
            "MPICluster(...).get_client().",
            option="client",
        )
    if client.asynchronous:
        raise PlacementError(
            "the client is asynchronous, and blocks are placed with synchronous clients only. Use Client(cluster) "
            "without asynchronous=True, in a separate thread if an event loop runs.",
            option="client",
        )
    address = client.scheduler and client.scheduler.address
    if client.status == "connecting":
        raise HeadUnreachable(
            f"the client has lost the head of the cluster at {address}: the cluster has ended, or is not reachable "
            "from here.",
            given=address,
            hint=LISTED,
        )
    if client.status != "running":
        raise PlacementError(f"the client is {client.status}. Connect another client to a running cluster.")
    _last = str(address)
    return client


def _gone(address: str) -> str:
    if not address:
        return ""
    return (
        f". The last client, of the cluster at {address}, is closed: you have closed this client, or the cluster has "
        "ended or is not reachable from here"
    )


_workers: list[Worker] = []


def set_current_worker(worker: Worker) -> None:
    """Make this the worker of the process; called one time, at the start of a rank."""
    _workers[:] = [worker]


def current_worker() -> Worker | None:
    """Return the worker of this process; None if the process is no rank. Thread-safe."""
    return _workers[0] if _workers else None


SERVER = "WORKBENCH_SERVER"
"""Variable of kernels whose Jupyter server shows dashboards: its pid and its base URL, e.g. ``4711 /user/me/``."""
_PROCESS = uuid.uuid4().hex


def cell_number() -> int | None:
    """Return the number ``n`` of the running cell ``In [n]``, or None outside of IPython."""
    return getattr(_shell(), "execution_count", None)


def notebook_names() -> dict[str, Any]:
    """Return the names of the notebook of this process; outside of IPython none."""
    return getattr(_shell(), "user_ns", {})


def notebook_id() -> str:
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
