"""A tunnel to a head without a direct route: one port, forwarded by ``ssh``."""

from __future__ import annotations

import asyncio
import socket

from workbench.errors import HeadUnreachable
from workbench.launch.options import host as checked_host
from workbench.log import debug_log
from workbench.processes.ending import end

_LOOPBACK = "127.0.0.1"
# Seconds for ssh to end after SIGTERM.
_END_TIMEOUT = 3.0


class Tunnel:
    """Forwards a port of this host through another host.

    Parameters
    ----------
    host
        Login host in the syntax of ``ssh``: a name, ``user@name``, or an entry of ``~/.ssh/config``.

    Raises
    ------
    InvalidRequest
        If `host` is not a valid name.
    """

    def __init__(self, host: str) -> None:
        self.host = checked_host("ssh_tunnel", host)
        self._process: asyncio.subprocess.Process | None = None

    async def open(self, address: str, timeout: float) -> str:
        """Forward a local port to the host and port in `address`; return the local address.

        Raises
        ------
        HeadUnreachable
            If ``ssh`` does not connect within `timeout` seconds. It must not ask for a password.
        """
        protocol, _, target = address.partition("://")
        port = _free_port()
        # `cat` ends when this process ends or is killed, and ssh ends with `cat`, so no port stays open.
        self._process = await asyncio.create_subprocess_exec(
            "ssh", "-T", "-o", "BatchMode=yes", "-o", "ExitOnForwardFailure=yes", "-o", "ServerAliveInterval=15",
            "-L", f"{_LOOPBACK}:{port}:{target}", self.host, "cat",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        debug_log.started(self._process.pid, "ssh to %s", self.host)
        try:
            async with asyncio.timeout(timeout):
                while not await _listens(port):
                    if self._process.returncode is not None:
                        raise self._failure(await self._last_output())
        except TimeoutError:
            raise self._failure(f"the port was not open after {timeout:.0f} s") from None
        return f"{protocol}://{_LOOPBACK}:{port}"

    async def _last_output(self) -> str:
        stream = self._process.stderr if self._process else None
        lines = (await stream.read()).decode(errors="replace").strip().splitlines() if stream else []
        return lines[-1] if lines else "ssh ended without a message"

    def _failure(self, why: str) -> HeadUnreachable:
        return HeadUnreachable(
            f"the tunnel through {self.host!r} could not be opened: {why}.",
            hint=f"ssh must work without a password. Test this with: ssh -o BatchMode=yes {self.host} true",
        )

    async def close(self) -> None:
        """End ``ssh``."""
        process, self._process = self._process, None
        if process is None:
            return
        await end(process, _END_TIMEOUT, f"ssh to {self.host}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_LOOPBACK, 0))
        return int(probe.getsockname()[1])


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(_LOOPBACK, port)
    except OSError:
        await asyncio.sleep(0.05)
        return False
    writer.close()
    return True
