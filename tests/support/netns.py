"""Nodes that are separate hosts, each with its address, host name, processes and shared memory; needs root.

Files are shared, also those of /tmp, where the tests have theirs. Temporary files of a node are in a separate folder:
processes of two nodes can have one number, and MPI names its temporary files for it.
"""

from __future__ import annotations

import contextlib
import secrets
import subprocess
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Network
from pathlib import Path

import psutil

from support.daemons import DEADLINE, Daemon

_SWITCH = """
set -e
ip link add switch type bridge
ip link set switch up
echo ready
exec sleep infinity
"""
# bash stays: as the first process of the node it is left the children of others, and waits for them.
_NODE = """
set -e
hostname "$1"
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs "$5"
mount --bind "$2" /etc/hosts
ip link set lo up
echo ready
read -r
ip address add "$3" dev eth0
ip link set eth0 up
ip route add default via "$4"
shift 5
"$@" <&- >&2 &
wait $!
"""


class Network:
    """A switch that this host and its nodes are plugged into.

    It lives in a separate namespace, and only this host's end of one cable is seen outside: when the process that
    holds the switch ends, however that comes, nothing is left.
    """

    def __init__(self, folder: Path, names: Sequence[str], host: str, environment: Mapping[str, str]) -> None:
        self.host, self._environment = host, environment
        self._cable = f"wb{secrets.token_hex(5)}"
        first, *others = _free_network().hosts()
        self.gateway = str(first)
        """The address of this host."""
        self.local = folder / "local"
        """The folder that is another one on each node."""
        self.local.mkdir()
        self.addresses = {name: str(address) for name, address in zip(names, others[10:], strict=False)}
        """The addresses of the nodes, by name."""
        known = {"localhost": "127.0.0.1", host: self.gateway, **self.addresses}
        self._hosts = folder / "hosts"
        self._hosts.write_text("".join(f"{address} {name}\n" for name, address in known.items()))
        self._switch = Daemon(
            ["unshare", "--net", "bash", "-c", _SWITCH], folder / "log" / "switch", environment, talks=True
        )
        self._switch.hear()
        try:
            _ip("link", "add", self._cable, "type", "veth", "peer", "name", "outside", "netns", str(self._switch.pid))
            self._at_switch("link", "set", "outside", "master", "switch", "up")
            _ip("address", "add", f"{self.gateway}/24", "dev", self._cable)
            _ip("link", "set", self._cable, "up")
        except BaseException:
            self.close()
            raise

    def boot(self, name: str, command: Sequence[str], log: Path) -> Daemon:
        """Start a node whose only purpose is this command."""
        node = Daemon(
            [
                *("unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"),
                *("bash", "-c", _NODE, "node", name, str(self._hosts), f"{self.addresses[name]}/24", self.gateway),
                *(str(self.local), *command),
            ],
            log,
            self._environment,
            talks=True,
        )
        try:
            node.hear()
            with contextlib.suppress(subprocess.CalledProcessError):  # of the node as it was before, if that is so
                self._at_switch("link", "delete", name)
            self._at_switch("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", str(node.pid))
            self.mend(name)
            self._at_switch("link", "set", name, "master", "switch")
            node.tell()
        except BaseException:
            node.kill()
            raise
        return node

    def cut_off(self, name: str) -> None:
        """Pull the cable of a node; its processes know nothing of it."""
        self._at_switch("link", "set", name, "down")

    def mend(self, name: str) -> None:
        """Plug it in again."""
        self._at_switch("link", "set", name, "up")

    def close(self) -> None:
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("link", "delete", self._cable)
        self._switch.kill()

    def _at_switch(self, *arguments: str) -> None:
        _run("nsenter", f"--net=/proc/{self._switch.pid}/ns/net", "ip", *arguments)


def _free_network() -> IPv4Network:
    taken = {entry.address.rpartition(".")[0] for entries in psutil.net_if_addrs().values() for entry in entries}
    while (prefix := f"10.{200 + secrets.randbelow(50)}.{secrets.randbelow(256)}") in taken:
        pass
    return IPv4Network(f"{prefix}.0/24")


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=DEADLINE)
