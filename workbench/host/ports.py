"""The TCP ports of a launcher of MPI and its ranks on this host, and whether the launcher accepts other users there."""

from __future__ import annotations

import os
import socket
from typing import Any

from workbench.host import guard, parent_death

STRANGER = 65534
"""The user id that tries the ports: that of the user ``nobody``."""
# Seconds for a launcher to close a connection.
_CLOSE_TIMEOUT = 1.0


def tried() -> list[dict[str, Any]]:
    """Return the ports of the launcher and the ranks of this process, a rank that the launcher has started.

    Returns
    -------
    list of dict
        Address (``host``, ``port``), whether only ranks listen there (``of_rank``), and whether a connection of another
        user was ``accepted``; None: not tried, because this user is not root, or the port is one of a rank.
    """
    import psutil

    this = psutil.Process()
    tether = next((each for each in this.parents() if parent_death.__file__ in each.cmdline()), None)
    of_rank: dict[tuple[str, int], bool] = {}
    for process in [this] if tether is None else tether.children(recursive=True):
        try:
            is_rank = not guard.is_launcher(process.pid)
            listening = [each for each in process.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
        except (psutil.Error, OSError):
            continue  # the process has ended
        for each in listening:
            host, port = each.laddr
            of_rank[host, port] = of_rank.get((host, port), True) and is_rank
    return [
        {"host": host, "port": port, "of_rank": its, "accepted": None if its else is_accepted(host, port)}
        for (host, port), its in sorted(of_rank.items())
    ]


def is_accepted(host: str, port: int) -> bool | None:
    """Return whether a program accepts a connection of `STRANGER` and keeps it; None if this cannot be tried."""
    here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  (nothing is bound)
    user = os.geteuid()
    try:
        os.seteuid(STRANGER)
    except OSError:
        return None
    try:
        # The user of a socket is the one that has created it.
        connection = socket.socket(socket.AF_INET6 if ":" in here else socket.AF_INET)
    finally:
        os.seteuid(user)
    with connection:
        connection.settimeout(_CLOSE_TIMEOUT)
        try:
            connection.connect((here, port))
            return bool(connection.recv(1))
        except TimeoutError:
            return _is_open(connection.getsockname()[1], port)
        except OSError:
            return False  # refused, or reset


def _is_open(peer: int, port: int) -> bool:
    """Return whether a program has the end `port` of a connection; otherwise it still waits to be accepted."""
    import psutil

    ends: list[Any] = psutil.net_connections("tcp")
    return any(each.pid and each.raddr and (each.laddr[1], each.raddr[1]) == (port, peer) for each in ends)
