"""Ports of hosts to which this host has no route, forwarded by ``ssh`` through a host that has one."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Sequence

from workbench.errors import HeadUnreachable
from workbench.launch.options import host as checked_host
from workbench.log import debug_log
from workbench.processes.ending import end

_LOOPBACK = "127.0.0.1"
# Seconds for ssh to end after SIGTERM.
_END_TIMEOUT = 3.0


class Tunnel:
    """One ``ssh`` process that forwards ports of this host through another host.

    Parameters
    ----------
    host
        Login host in the syntax of ``ssh``: a name, ``user@name``, or an entry of ``~/.ssh/config``.

    Raises
    ------
    InvalidRequest
        If `host` is not the name of a host.
    """

    def __init__(self, host: str) -> None:
        self.host = checked_host("ssh_tunnel", host)
        self._process: asyncio.subprocess.Process | None = None

    async def open(self, addresses: Sequence[str], timeout: float) -> list[str]:
        """Forward a port to the host and port of each address; return the addresses that lead there from here.

        Raises
        ------
        HeadUnreachable
            If ``ssh`` has not opened the ports within `timeout` seconds. It asks for no password: nobody could type it.
        """
        parts = [address.partition("://") for address in addresses]
        ports = _free_ports(len(parts))
        routes = [f"{_LOOPBACK}:{port}:{target}" for port, (_, _, target) in zip(ports, parts, strict=True)]
        # `cat` ends when this process ends, for any reason, and ssh with it: no port stays open.
        self._process = await asyncio.create_subprocess_exec(
            "ssh", "-T", "-o", "BatchMode=yes", "-o", "ExitOnForwardFailure=yes", "-o", "ServerAliveInterval=15",
            *(argument for route in routes for argument in ("-L", route)), self.host, "cat",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        debug_log.started(self._process.pid, "ssh to %s", self.host)
        try:
            async with asyncio.timeout(timeout):
                for port in ports:
                    while not await _listens(port):
                        if self._process.returncode is not None:
                            raise self._failure(await self._error_output())
        except TimeoutError:
            raise self._failure(f"ssh did not open the ports within {timeout:.0f} s") from None
        return [f"{protocol}://{_LOOPBACK}:{port}" for port, (protocol, _, _) in zip(ports, parts, strict=True)]

    async def _error_output(self) -> str:
        stream = self._process.stderr if self._process else None
        lines = (await stream.read()).decode(errors="replace").strip().splitlines() if stream else []
        return lines[-1] if lines else "ssh ended without a message"

    def _failure(self, reason: str) -> HeadUnreachable:
        return HeadUnreachable(
            f"the tunnel through {self.host!r} could not be opened: {reason}.",
            hint=f"ssh must work without a password. Test this with: ssh -o BatchMode=yes {self.host} true",
        )

    async def close(self) -> None:
        """End ``ssh``."""
        process, self._process = self._process, None
        if process is None:
            return
        await end(process, _END_TIMEOUT, f"ssh to {self.host}")


def _free_ports(number: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(number)]
        for probe in probes:
            probe.bind((_LOOPBACK, 0))
        return [int(probe.getsockname()[1]) for probe in probes]


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(_LOOPBACK, port)
    except OSError:
        await asyncio.sleep(0.05)
        return False
    writer.close()
    return True
