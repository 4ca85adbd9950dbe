"""Networks and ports of this host: the address that head and ranks bind, fabrics, and the ports of MPI's launcher."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from workbench import config
from workbench.errors import InvalidRequest, LaunchError, did_you_mean, named
from workbench.hints import Option
from workbench.host import guard, parent_death

LOOPBACK = "127.0.0.1"
# Any port: connecting a datagram socket sends nothing.
_PORT = 9
# Linux's devices for networks other than TCP/IP: InfiniBand, Omni-Path and EFA; Slingshot.
_FABRICS = ("/sys/class/infiniband", "/sys/class/cxi", "/sys/class/cxi_user")


def address(interface: str | None = None, *, peers: Iterable[str] | None = None) -> str:
    """Return the IPv4 address to bind on this host.

    Parameters
    ----------
    interface
        A network interface; None: that of the setting ``workbench.interface``, and without the setting the interface
        with the route to the peers.
    peers
        Names of other hosts that connect to this one; None: no other host does, and loopback is enough.

    Raises
    ------
    InvalidRequest
        If the interface does not exist on this host or has no IPv4 address.
    LaunchError
        If this host has only loopback, and there are peers.
    """
    if interface is not None:
        return _address_of(interface, "interface")
    if (setting := config.get("interface")) is not None:
        return _address_of(setting, "workbench.interface")
    if peers is None:
        return LOOPBACK
    # The route to a node of the job is more reliable than the default route, and that than the name of this host.
    for candidate in (*map(_source_address, peers), _source_address("192.0.2.1"), _resolve(socket.gethostname())):
        if candidate is not None and not candidate.startswith("127."):
            return candidate
    others = sorted(other for other in _addresses().values() if not other.startswith("127."))
    if others:
        return others[0]
    raise LaunchError(
        f"{socket.gethostname()} has no IPv4 address except loopback, but other hosts must connect to it.",
        option="interface",
        hint=("Name an interface with ", Option("interface"), ", or check the network of the host."),
    )


def _address_of(interface: object, option: str) -> str:
    usable = _addresses()
    if str(interface) not in usable:
        raise InvalidRequest(
            f"{named(option)} {interface!r} does not exist on {socket.gethostname()}: "
            f"{did_you_mean(interface, usable)}",
            option=option,
            given=interface,
            allowed=usable,
        )
    return usable[str(interface)]


def _addresses() -> dict[str, str]:
    import psutil

    return {
        name: each.address
        for name, addresses in psutil.net_if_addrs().items()
        for each in addresses
        if each.family == socket.AF_INET
    }


def _source_address(peer: str) -> str | None:
    """Return the source address of packets to `peer`, or None without a route."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((peer, _PORT))
            return str(probe.getsockname()[0])
    except OSError:
        return None


def _resolve(name: str) -> str | None:
    try:
        return socket.gethostbyname(name)
    except OSError:
        return None


def has_fabric() -> bool:
    """Return whether this host has a network other than TCP/IP."""
    return any(any(Path(folder).glob("*")) for folder in _FABRICS)


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
