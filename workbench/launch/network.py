"""The address that head and ranks of a cluster bind, and whether MPI may have another network."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from pathlib import Path

from workbench import config
from workbench.errors import InvalidRequest, LaunchError, did_you_mean, named
from workbench.hints import Option

LOOPBACK = "127.0.0.1"
# Connecting a datagram socket sends nothing: any port will do.
_PORT = 9
# Where Linux has its devices for networks other than that of sockets: InfiniBand, Omni-Path, EFA; Slingshot.
_FABRICS = ("/sys/class/infiniband", "/sys/class/cxi", "/sys/class/cxi_user")


def address(interface: str | None = None, *, peers: Iterable[str] | None = None) -> str:
    """Return the IPv4 address to bind on this host.

    Parameters
    ----------
    interface
        Network interface that was asked for; None: that of the setting ``workbench.interface``, and without it the
        one that leads to the others.
    peers
        Names of other hosts that have to reach this one; None: nobody but this host has to, so that loopback is
        enough.

    Raises
    ------
    InvalidRequest
        If this host has no such interface with an IPv4 address.
    LaunchError
        If others have to reach this host, but it has only loopback.
    """
    if interface is not None:
        return _of(interface, "interface")
    if (setting := config.get("interface")) is not None:
        return _of(setting, "workbench.interface")
    if peers is None:
        return LOOPBACK
    # The way to another node of the job tells more than the way to anywhere, and that more than this host's name.
    for way in (*(_towards(peer) for peer in peers), _towards("192.0.2.1"), _resolve(socket.gethostname())):
        if way is not None and not way.startswith("127."):
            return way
    others = sorted(given for given in _addresses().values() if not given.startswith("127."))
    if others:
        return others[0]
    raise LaunchError(
        f"{socket.gethostname()} has no network address but loopback, and other hosts have to reach it.",
        hint=("Name an interface with ", Option("interface"), ", or look at the node's network."),
    )


def _of(interface: object, option: str) -> str:
    usable = _addresses()
    if str(interface) not in usable:
        raise InvalidRequest(
            f"{named(option)} {interface!r} on {socket.gethostname()}: {did_you_mean(interface, usable)}",
            option=option,
            given=interface,
            allowed=usable,
        )
    return usable[str(interface)]


def _addresses() -> dict[str, str]:
    import psutil

    interfaces = psutil.net_if_addrs().items()
    return {name: its.address for name, all_its in interfaces for its in all_its if its.family == socket.AF_INET}


def _towards(peer: str) -> str | None:
    """Return the address that packets to `peer` leave from, or None without a way."""
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
    """Return whether this host has a network other than that of sockets."""
    return any(list(Path(folder).glob("*")) for folder in _FABRICS)
