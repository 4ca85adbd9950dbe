"""A head that this host has no route to is reached through another one, by the real ssh and a real server."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import CancelledError
from urllib.parse import urlsplit

import asyncssh
import psutil
import pytest
from distributed import Client
from support.processes import DEADLINE, gone, line_of, until
from support.raised import raises

from workbench import MPICluster
from workbench.cells import client as cells
from workbench.deploy.ssh_tunnel import Tunnel
from workbench.errors import HeadUnreachable, InvalidRequest

ATTACH = """
import os, sys
from workbench import MPICluster
from workbench.cells import client as cells
cluster = MPICluster.attach("shared", ssh_tunnel="gate")
print(cluster.scheduler_address, flush=True)
sys.stdin.read()
"""


class _Open(asyncssh.SSHServer):
    """Lets everybody in, and forwards wherever they want."""

    def begin_auth(self, username):
        return False

    def connection_requested(self, dest_host, dest_port, orig_host, orig_port):
        return True


async def _cat(process):
    await process.stdin.read()
    process.exit(0)


@pytest.fixture(scope="module")
def gate():
    """The port of an ssh server on this host."""
    loop, ready = asyncio.new_event_loop(), threading.Event()
    ports = []

    async def serve():
        server = await asyncssh.listen(
            "127.0.0.1", 0, server_factory=_Open, process_factory=_cat,
            server_host_keys=[asyncssh.generate_private_key("ssh-ed25519")],
        )  # fmt: skip
        ports.append(server.sockets[0].getsockname()[1])
        ready.set()
        return server

    def run():
        server = loop.run_until_complete(serve())
        loop.run_forever()
        server.close()
        loop.run_until_complete(server.wait_closed())
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    assert ready.wait(DEADLINE)
    yield ports[0]
    loop.call_soon_threadsafe(loop.stop)
    thread.join(DEADLINE)


@pytest.fixture
def ssh(gate, tmp_path, monkeypatch):
    """`ssh gate` leads to the server, and nothing of the user's own settings is used."""
    config = tmp_path / "config"
    config.write_text(
        f"Host gate\n HostName 127.0.0.1\n Port {gate}\nHost closed\n HostName 127.0.0.1\n Port 1\nHost *\n"
        f" UserKnownHostsFile /dev/null\n StrictHostKeyChecking no\n LogLevel ERROR\n IdentityAgent none\n"
    )
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\nexec {shutil.which('ssh')} -F '{config}' \"$@\"\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")


def tunnels(process=None):
    """Return the ssh processes below a process."""
    children = psutil.Process(process).children(recursive=True)
    return [child for child in children if "".join(line_of(child)[:1]).endswith("/ssh")]


@pytest.mark.usefixtures("ssh")
def test_a_cluster_is_used_through_a_tunnel_that_ends_with_the_connection(cluster4):
    with MPICluster.attach("shared", ssh_tunnel="gate") as cluster, Client(cluster) as client:
        address = urlsplit(cluster.scheduler_address)
        assert address.hostname == "127.0.0.1"
        assert address.port != urlsplit(cluster4.scheduler_address).port
        assert client.submit(abs, -5).result() == 5
        assert len(cluster.ranks) == 4
        its = tunnels()
        assert len(its) == 1
    assert all(map(gone, its))


@pytest.mark.usefixtures("ssh")
def test_cells_and_engines_are_reached_through_a_tunnel_and_the_ports_close_with_the_connection(cluster4):
    with MPICluster.attach("shared", ssh_tunnel="gate") as cluster, Client(cluster) as client:
        result = cells.run("comm.allreduce(rank)", client=client, values=True)
        assert result.values() == [6, 6, 6, 6]
        with cluster.ipyparallel() as engines:
            assert engines[:].apply_sync(os.getpid) == [rank["pid"] for rank in cluster.ranks]
        own = tunnels()
        assert len(own) == 3, "one each for the head, the cells and the client of ipyparallel"
        assert cells.run("rank", client=client, values=True).values() == [0, 1, 2, 3]
        assert tunnels() == own, "the next cell uses the ports of the first one"
    assert all(map(gone, own))


def lines(process):
    return tuple(line_of(process))


def answers(client):
    """Return whether a task runs; the first ones may use a connection that has ended."""
    try:
        return client.submit(abs, -7, pure=False).result(timeout=5) == 7
    except (OSError, CancelledError):  # TimeoutError is one
        return False


@pytest.mark.usefixtures("ssh")
def test_an_ssh_that_ends_is_started_again_with_the_same_ports(cluster4):
    with MPICluster.attach("shared", ssh_tunnel="gate") as cluster, Client(cluster) as client:
        assert cells.run("rank", client=client, values=True).values() == [0, 1, 2, 3]
        first = tunnels()
        commands = set(map(lines, first))
        for process in first:
            process.kill()
        until("ssh runs again", lambda: not set(first) & set(its := tunnels()) and set(map(lines, its)) == commands)
        until("the head answers", lambda: answers(client))
        assert cells.run("rank", client=client, values=True).values() == [0, 1, 2, 3]
        its = tunnels()
    assert all(map(gone, its))


@pytest.mark.usefixtures("ssh")
def test_a_tunnel_ends_with_its_process_however_that_ends(cluster4):
    with subprocess.Popen([sys.executable, "-c", ATTACH], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline().startswith(b"tls://127.0.0.1:")
        its = tunnels(process.pid)
        assert len(its) == 1
        process.kill()
    until("ssh ends", lambda: all(map(gone, its)))


@pytest.mark.usefixtures("ssh")
@pytest.mark.parametrize(("host", "why"), [("closed", "Connection refused"), ("no-such.invalid", "resolve hostname")])
def test_a_host_that_cannot_be_logged_in_to_is_told_with_what_ssh_says(host, why, cluster4):
    with pytest.raises(HeadUnreachable, match=f"tunnel through '{host}' could not be opened: .*{why}.*BatchMode"):
        MPICluster.attach("shared", ssh_tunnel=host)
    assert tunnels() == []


@pytest.mark.parametrize("host", ["", "-oProxyCommand=touch x", "two words", "a\nb"])
def test_what_is_no_host_is_refused(host):
    with raises(InvalidRequest, option="ssh_tunnel"):
        Tunnel(host)
