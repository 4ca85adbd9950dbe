"""The head of a cluster as its clients reach it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from distributed.core import rpc

from workbench import config
from workbench.deploy import certificates, registry
from workbench.deploy.jobs import is_batch
from workbench.deploy.progress import Progress
from workbench.deploy.ssh_tunnel import Tunnel
from workbench.deploy.start import ClusterStarter
from workbench.errors import HeadUnreachable, StartError
from workbench.session.head_client import HeadClient

if TYPE_CHECKING:
    from workbench.deploy.record import Record
    from workbench.metrics.update import Update

# Seconds between two looks at what has become of the job while the head is asked.
_LOOK = 0.2
# Seconds between two looks at a change of the worlds.
_NEWS = 1.0
# Seconds for a head to answer whose lease is out of sight.
_ANSWER = 3.0


class HeadConnection(HeadClient):
    """The connection to the head of a job's cluster.

    Parameters
    ----------
    job
        The cluster's job, whose record is kept up to date with what the head tells.
    ssh_tunnel
        Host, as ``ssh`` takes it, through which the head is reached; None: directly.
    """

    def __init__(self, job: ClusterStarter, ssh_tunnel: str | None = None) -> None:
        self._job = job
        self._tunnel = Tunnel(ssh_tunnel) if ssh_tunnel else None
        self.rpc: Any = None
        """Dask's connections to the scheduler; None before `open`."""
        self.security: Any = None
        """Dask's security with the cluster's certificate; None before `open`."""
        self.address = ""
        """Where the head is reached from here; empty before `open`."""

    async def open(self) -> None:
        """Connect.

        Raises
        ------
        HeadUnreachable
            If the head does not answer within ``workbench.connect-timeout``; while it starts, in the time that its
            start has.
        StartError
            If its cluster has failed meanwhile.
        """
        record = self._job.record
        self.security = certificates.security(record.folder)
        timeout = config.seconds("connect-timeout")
        address = str(record.address)
        if self._tunnel is not None:
            address = await self._tunnel.open(address, timeout)
        self.address = address
        self.rpc = rpc(address, connection_args=self.security.get_connection_args("client"), timeout=timeout)
        patience = timeout
        while True:
            try:
                async with asyncio.timeout(patience):
                    await self.ask_while_looking()
                break
            except StartError:
                raise
            except OSError as error:
                left = self._job.record.deadline - time.time()
                if patience != timeout or left <= 0 or not await self._is_starting(timeout):
                    cause = error.__cause__ if isinstance(error, HeadUnreachable) else error
                    raise self._silent(patience, cause or error) from error
                # Its first seconds are those in which it has the most to do, and its start has time for them.
                patience = self.rpc.timeout = left
        self.rpc.timeout = timeout

    async def _is_starting(self, timeout: float) -> bool:
        """Return whether the head is just starting, and can be reached: its system answers before it does itself."""
        host, _, port = self.address.partition("://")[2].rpartition(":")
        if self._job.record.state != "starting" or self._tunnel is not None:
            return False  # a tunnel answers although nobody is at its other end
        try:
            async with asyncio.timeout(timeout):
                _, writer = await asyncio.open_connection(host, int(port))
        except OSError:
            return False
        writer.close()
        return True

    def _silent(self, patience: float, error: BaseException) -> HeadUnreachable:
        record = self._job.record
        host, _, port = str(record.address).partition("://")[2].rpartition(":")
        way = f"through {self._tunnel.host}" if self._tunnel is not None else "from here"
        advice = f"It may be busy or stuck: see its logs in {record.logs}, and try again."
        if not record.process.is_local:
            advice += (
                " If there is no route from here to that host, name one that has one and that you can log in to: "
                f"--ssh-tunnel {record.process.host}"
            )
        return HeadUnreachable(
            f"cluster {record.name!r}: its head on {record.process.host} does not answer at {host} port {port} "
            f"{way} within {patience:.0f} s ({type(error).__name__}).",
            hint=advice,
        )

    async def close(self) -> None:
        """Disconnect, as far as Dask's cluster has not done so already."""
        closing, self.rpc = self.rpc, None
        if closing is not None:
            await closing.close_rpc()
        if self._tunnel is not None:
            await self._tunnel.close()

    @property
    def head(self) -> Any:
        """As `HeadClient.head`: also if the head has ended, as far as that can be seen from here."""
        if self.rpc is None:
            raise self.lost()
        process = self._job.record.process
        if process.alive() is False:
            # Without a look at it Dask would try to connect for as long as it may.
            raise HeadUnreachable(
                f"the head of cluster {self._job.record.name!r}, process {process.pid} on {process.host}, has ended. "
                f"Its logs are in {self._job.record.logs}."
            )
        return self.rpc

    def lost(self) -> HeadUnreachable:
        """Return the error that says that there is no connection any more."""
        name = self._job.record.name
        return HeadUnreachable(
            f"this object is not connected to cluster {name!r} any more.",
            hint=f"MPICluster.attach({name!r}) connects to it if it still runs.",
        )

    async def ask(self, timeout: float | None = None) -> None:
        """Ask the head for the state of the cluster; raises as `call`."""
        self._job.update(registry.from_dict(await self.call("workbench_status", timeout)))

    async def ask_while_looking(self) -> None:
        """Ask the head, but do not insist: if it has failed meanwhile its record tells why."""
        asking = asyncio.ensure_future(self.ask())
        try:
            while not (await asyncio.wait({asking}, timeout=_LOOK))[0]:
                await asyncio.to_thread(self._job.look)
            if asking.exception():
                await asyncio.to_thread(self._job.look)
            await asking
        finally:
            asking.cancel()

    async def change(self, operation: str, what: str, *, quiet: bool, **message: Any) -> None:
        """Wait until the head has changed its worlds, and show how it goes where that may take long.

        Parameters
        ----------
        operation, **message
            As of `call`.
        what
            What it does, in words.
        quiet
            Show nothing.

        Raises
        ------
        HeadUnreachable
            If it is not done in the time that the head gives itself.
        """
        record, batch = self._job.record, is_batch(self._job.record)
        # The head gives a world this time to hand over its results, and this time to come up ...
        patience = 2 * record.ready_within + config.seconds("close-timeout")
        if batch:
            patience += config.seconds("queue-timeout")  # ... and more ranks are another job's
        asking = asyncio.ensure_future(self.call(operation, **message))
        try:
            async with asyncio.timeout(patience):
                with Progress(record.total, quiet=quiet or not batch) as progress:
                    while not (await asyncio.wait({asking}, timeout=_NEWS))[0]:
                        await self.ask()
                        now = self._job.record
                        progress.show(now.message, now.up, now.total)
                    await asking
        except StartError:
            raise  # of which some are timeouts too
        except TimeoutError as error:
            raise HeadUnreachable(
                f"cluster {record.name!r}: {what} was not done after {patience:.0f} s.",
                hint=f"Look at its logs in {record.logs}, or stop it.",
            ) from error
        finally:
            asking.cancel()
        await self.ask()

    async def refresh(self) -> Record:
        """Have the head tell how the cluster is, and return its record.

        Raises
        ------
        HeadUnreachable
            If it does not answer, or has ended.
        """
        if not await self._done_while_it_runs(self.ask(config.seconds("connect-timeout"))):
            raise self.lost()
        return self._job.record

    async def metrics(self) -> Update:
        """Return everything that the head has measured and kept; raises as `refresh`."""
        from workbench.metrics.update import Update

        return Update.unpack(await self.call("workbench_metrics", config.seconds("connect-timeout"), since=0))

    def unreachable(self, error: BaseException) -> HeadUnreachable:
        """As `HeadClient.unreachable`."""
        record = self._job.record
        return HeadUnreachable(
            f"the head of cluster {record.name!r} at {record.address} does not answer any more "
            f"({type(error).__name__}).",
            hint=f"It has ended, is stuck or is cut off; see its logs in {record.logs}.",
        )

    async def gone(self) -> bool:
        """Tell whether the cluster has ended, whoever has ended it."""
        if await asyncio.to_thread(self._job.runs):
            return False
        with contextlib.suppress(OSError):
            await self.ask(_ANSWER)
            return False  # its folder is out of sight, but it is there
        return True

    async def ask_to_end(self) -> None:
        """Ask the head to end the cluster; return when it has said yes, or is gone."""
        closing = self.call("workbench_close", config.seconds("connect-timeout"), reason="the user has closed it")
        await self._done_while_it_runs(closing)

    async def _done_while_it_runs(self, call: Awaitable[None]) -> bool:
        """Await a call, but no longer than the cluster is there: Dask would try to connect for as long as it may."""
        asking = asyncio.ensure_future(call)
        try:
            while not (await asyncio.wait({asking}, timeout=_LOOK))[0]:
                if not await asyncio.to_thread(self._job.runs):
                    return False
            await asking
        finally:
            asking.cancel()
        return True
