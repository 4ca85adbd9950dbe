"""The ports of a cluster's launcher, which obeys every peer, accept only the owner of the cluster."""

from __future__ import annotations

import os
import select
import socket
import struct
from contextlib import ExitStack

import psutil
import pytest
from support.processes import DEADLINE, launcher_of, until
from support.users import connected


def listening(process):
    """Return the ports of a process, each with an address of this host by which it is reached."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  (it is what a port may listen on)
    return [
        (reachable.get(one.laddr.ip, one.laddr.ip), one.laddr.port)
        for one in process.net_connections("tcp")
        if one.status == psutil.CONN_LISTEN
    ]


def probe(launcher):
    """Return the message by which a daemon of PRRTE finds out whether another one is there."""
    name = f"prterun-{os.uname().nodename}-{launcher.pid}@0".encode().ljust(256, b"\0")
    ends = name + struct.pack("!I", 1) + name + struct.pack("!I", 0)
    return (ends + bytes(12) + b"\2").ljust(568, b"\0")


def is_accepted(launcher, connection):
    its = connection.getsockname()[1]
    return any(one.raddr and one.raddr.port == its for one in launcher.net_connections("tcp"))


def answered(connection):
    return select.select([connection], [], [], 0)[0] and b"prterun" in connection.recv(4096, socket.MSG_PEEK)


@pytest.mark.mpi_flavor
def test_no_port_of_the_launcher_answers_another_user_and_all_accept_the_owner(cluster4):
    launcher = launcher_of(cluster4)
    ports = [port for process in (launcher, *launcher.children()) for port in listening(process)]
    assert ports
    for port in ports:
        with connected(port, DEADLINE, nobody=True) as connection:
            try:
                connection.sendall(probe(launcher))
                assert connection.recv(1) == b""
            except ConnectionResetError:
                pass
        with connected(port, DEADLINE) as connection:
            until(f"port {port} accepts its user", lambda own=connection: is_accepted(launcher, own))
    assert "of the MPI launcher: it is not of user" in cluster4.logs()
    assert cluster4.refresh().state == "ready"


def test_the_launcher_of_open_mpi_answers_the_owner(cluster4):
    launcher = launcher_of(cluster4)
    assert launcher.name() == "prterun", "Hydra answers nobody: this test is for Open MPI"
    with ExitStack() as opened:
        connections = [opened.enter_context(connected(port, DEADLINE)) for port in listening(launcher)]
        for connection in connections:
            connection.sendall(probe(launcher))
        until("a port answers", lambda: any(map(answered, connections)))
