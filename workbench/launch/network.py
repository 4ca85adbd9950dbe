"""The address that head and ranks of a cluster bind, and the check for a network other than TCP/IP."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from pathlib import Path

from workbench import config
from workbench.errors import InvalidRequest, LaunchError, did_you_mean, named
from workbench.hints import Option

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
