"""Ports of hosts to which this host has no route, forwarded by ``ssh`` through a host that has one."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Mapping, Sequence

from workbench.errors import HeadUnreachable
from workbench.host import debug_log
from workbench.host.processes import end
from workbench.launch.options import host as checked_host

_LOOPBACK, _NAME = "127.0.0.1", "ssh to %s"
# Seconds for ssh to end after SIGTERM.
_END_TIMEOUT = 3.0
# Seconds until ssh is started again, the first time and after many failures.
_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
# Bytes of the last output of ssh.
_KEPT = 4096


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

    Notes
    -----
    If ``ssh`` ends before `close`, for example because a laptop was suspended, another ``ssh`` opens the same ports:
    Dask and ZeroMQ connect to a port again by themselves.
    """

    def __init__(self, host: str) -> None:
        self.host = checked_host("ssh_tunnel", host)
        self._process: asyncio.subprocess.Process | None = None
        self._last_words = b""
        self._keeping: asyncio.Task[None] | None = None

    async def open(self, addresses: Sequence[str], timeout: float) -> list[str]:
        """Forward a port to the host and port of each address; return the addresses that lead there from here.

        Raises
        ------
        HeadUnreachable
            If ``ssh`` has not opened the ports within `timeout` seconds. The ssh does not
            ask for a password, because no user could type a password here.
        """
        parts = [address.partition("://") for address in addresses]
        targets = {port: target for port, (_, _, target) in zip(_free_ports(len(parts)), parts, strict=True)}
        ended = await self._start(targets, timeout)
        self._keeping = asyncio.create_task(self._keep(targets, timeout, ended))
        return [f"{protocol}://{_LOOPBACK}:{port}" for port, (protocol, _, _) in zip(targets, parts, strict=True)]

    async def _start(self, targets: Mapping[int, str], timeout: float) -> asyncio.Task[None]:
        """Start ``ssh``, and return a task that ends with the process."""
        routes = [f"{_LOOPBACK}:{port}:{target}" for port, target in targets.items()]
        # `cat` ends when this process ends, for any reason, and ssh with it: no port stays open.
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                "ssh", "-T", "-o", "BatchMode=yes", "-o", "ExitOnForwardFailure=yes", "-o", "ServerAliveInterval=15",
                *(argument for route in routes for argument in ("-L", route)), self.host, "cat",
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise self._failure(str(error)) from None
        debug_log.started(process.pid, _NAME, self.host)
        ended = asyncio.create_task(self._drain(process))
        try:
            async with asyncio.timeout(timeout):
                for port in targets:
                    while not await _listens(port):
                        if ended.done():
                            lines = self._last_words.decode(errors="replace").strip().splitlines()
                            raise self._failure(lines[-1] if lines else "ssh ended without a message")
        except TimeoutError:
            raise self._failure(f"ssh did not open the ports within {timeout:.0f} s") from None
        return ended

    async def _drain(self, process: asyncio.subprocess.Process) -> None:
        """Keep the last output of ``ssh``, until its end: ssh writes a line for each connection that fails."""
        self._last_words = b""
        while process.stderr is not None and (words := await process.stderr.read(_KEPT)):
            self._last_words = (self._last_words + words)[-_KEPT:]
        await process.wait()
        debug_log.ended(process.pid, process.returncode, _NAME, self.host)

    async def _keep(self, targets: Mapping[int, str], timeout: float, ended: asyncio.Task[None]) -> None:
        pause, started = _PAUSE, time.monotonic()
        while True:
            await ended
            # An ssh that ends immediately, for example because its port is in use, must not log in each second.
            pause = _PAUSE if time.monotonic() - started > _LONGEST_PAUSE else min(2 * pause, _LONGEST_PAUSE)
            await asyncio.sleep(pause)
            started = time.monotonic()
            try:
                ended = await self._start(targets, timeout)
            except HeadUnreachable as error:
                debug_log.write("process", "%s", error)
                await self._end()

    def _failure(self, reason: str) -> HeadUnreachable:
        return HeadUnreachable(
            f"the tunnel through {self.host!r} could not be opened: {reason}.",
            hint=f"ssh must connect without a password. Test this with: ssh -o BatchMode=yes {self.host} true",
        )

    async def close(self) -> None:
        """End ``ssh``."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
            self._keeping = None
        await self._end()

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await end(process, _END_TIMEOUT, _NAME % self.host)


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
