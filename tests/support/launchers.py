"""The launcher of a world and its daemons, on all nodes that are network namespaces of this machine; and strangers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from support.daemons import running
from support.processes import DEADLINE
from support.users import NOBODY, connected
from workbench.deploy.folder import ClusterFolder
from workbench.deploy.record import Record

if TYPE_CHECKING:
    import psutil

_LISTENS = "0A"
# Prints what the port sends to a client that waits for the first message.
_KNOCK = """
import os, socket, sys
os.seteuid(int(sys.argv[4]))
with socket.socket() as connection:
    connection.settimeout(float(sys.argv[3]))
    connection.connect((sys.argv[1], int(sys.argv[2])))
    try:
        print(connection.recv(1))
    except ConnectionResetError:
        print(b"")
"""


def hosts_folder(record: Record) -> Path:
    """Return the folder that names the addresses of the hosts of world 0."""
    return ClusterFolder.of(record).path / "hosts-0"


def launchers(record: Record) -> list[psutil.Process]:
    """Return the guarded launcher of world 0, and its daemons: all of their processes that listen."""
    # srun, which starts the daemons, was given their tether's words as well.
    tethers = running(str(hosts_folder(record)))
    below = {child for tether in tethers for child in tether.children(recursive=True)}
    return [process for process in below if process.name() in ("prterun", "prted") and ports_of(process)]


def address_of(process: psutil.Process) -> str:
    """Return the address of the node that a process is on."""
    text = Path(f"/proc/{process.pid}/net/fib_trie").read_text(encoding="ascii")
    (address,) = set(re.findall(r"\|-- (10\.[\d.]+)\n\s+/32 host LOCAL", text))
    return str(address)


def ports_of(process: psutil.Process) -> list[int]:
    """Return the ports at which a process is reached by the address of its node."""
    sockets = {str(file.readlink()) for file in Path(f"/proc/{process.pid}/fd").iterdir()}
    found = set()
    for kind in ("tcp", "tcp6"):
        # psutil would read those of this host.
        for line in Path(f"/proc/{process.pid}/net/{kind}").read_text(encoding="ascii").splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            address, _, port = local.partition(":")
            if state == _LISTENS and not int(address, 16) and f"socket:[{rest[5]}]" in sockets:
                found.add(int(port, 16))
    return sorted(found)


def assert_closed_to_strangers(record: Record) -> list[str]:
    """Check that no port of the launcher answers another user or another host; return the addresses of the nodes."""
    found = launchers(record)
    for process in found:
        for port in ports_of(process):
            assert _answer_from_here(process, port) == b"", f"{process} answers another host"
            assert _answer_to_nobody(process, port) == b"b''", f"{process} answers another user"
    return sorted(map(address_of, found))


def _answer_from_here(process: psutil.Process, port: int) -> bytes:
    """Return what a port sends to this host, which is no node."""
    with connected((address_of(process), port), DEADLINE) as connection:
        try:
            return connection.recv(1)
        except ConnectionResetError:
            return b""


def _answer_to_nobody(process: psutil.Process, port: int) -> bytes:
    """Return what a port sends to another user of its node."""
    line = ["nsenter", f"--net=/proc/{process.pid}/ns/net", sys.executable, "-I", "-S", "-c", _KNOCK]
    given = [address_of(process), str(port), str(DEADLINE), str(NOBODY)]
    done = subprocess.run([*line, *given], capture_output=True, check=True, timeout=2 * DEADLINE)
    return done.stdout.strip()
