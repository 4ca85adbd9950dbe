"""The connection of a client to the head of a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from distributed.core import rpc

from workbench import config
from workbench.cancellation import run_to_end
from workbench.comm import certificates, listener
from workbench.deploy import ended
from workbench.deploy.display import Progress
from workbench.deploy.job import POLL_INTERVAL_S, ClusterJob
from workbench.deploy.record import from_dict
from workbench.deploy.ssh_tunnel import Tunnel
from workbench.errors import HeadUnreachable, StartError
from workbench.session.head_client import HeadClient, is_lost

if TYPE_CHECKING:
    from workbench.deploy.record import Record
    from workbench.metrics.update import Update

# How often the job is checked while the head has not answered.
_JOB_CHECK_INTERVAL_S = 0.2
_PROGRESS_INTERVAL_S = 1.0
# For the ends of ranks before and after a change.
_ENDING_S = 60.0
# For the note of the end, on a file server that may hang.
_LOOK_TIMEOUT_S = 1.0
# For a head whose lease cannot be seen.
_ANSWER_TIMEOUT_S = 3.0


class HeadConnection(HeadClient):
    """The connection to the head of a job's cluster.

    Parameters
    ----------
    job
        The cluster's job, whose record is updated from the head.
    ssh_tunnel
        Host, as ``ssh`` takes it, through which the head is reached; None: directly.
    """

    def __init__(self, job: ClusterJob, ssh_tunnel: str | None = None) -> None:
        listener.use_retrying_connector()
        self._job = job
        self._tunnel = Tunnel(ssh_tunnel) if ssh_tunnel else None
        self._forwarded: dict[str, tuple[Tunnel, list[str], list[str]]] = {}
        self._forwarding = asyncio.Lock()
        self.rpc: Any = None
        """Dask's connections to the scheduler; None before `open`."""
        self.security: Any = None
        """Dask's security with the cluster's certificate; None before `open`."""
        self.address = ""
        """Where the head is reached from here; empty before `open`."""

        self._end: ended.EndReason | None = None

    async def call(self, operation: str, timeout: float | None = None, /, **message: Any) -> Any:
        """As `HeadClient.call`; the error has the reason of the end of the cluster, if it is known."""
        try:
            return await super().call(operation, timeout, **message)
        except HeadUnreachable as error:
            if await self.end_reason():
                raise self.lost() from error
            raise

    async def end_reason(self) -> ended.EndReason | None:
        """Return how the cluster has ended; None if that is not known, or its folder cannot be read now."""
        # A `stop` that has failed withdraws its note, so each call reads anew.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_TIMEOUT_S):
                self._end = await asyncio.to_thread(self._job.folder.end)
        return self._end

    async def connect(self) -> None:
        """Prepare the connections, which the first call makes; a tunnel is opened here."""
        self.security = certificates.security(self._job.folder.path)
        timeout = config.seconds("connect-timeout")
        address = str(self._job.record.address)
        if self._tunnel is not None:
            [address] = await self._tunnel.open([address], timeout)
        self.address = address
        self.rpc = rpc(address, connection_args=self.security.get_connection_args("client"), timeout=timeout)

    async def open(self) -> None:
        """Connect, and get the record from the head.

        Raises
        ------
        HeadUnreachable
            If the head does not answer within ``workbench.connect-timeout``; while it starts, in the time that its
            start has.
        StartError
            If its cluster has failed meanwhile.
        """
        await self.connect()
        timeout = attempt_timeout = config.seconds("connect-timeout")
        while True:
            try:
                async with asyncio.timeout(attempt_timeout):
                    await self.ask_while_looking()
                break
            except StartError:
                raise
            except OSError as error:
                left = self._job.record.deadline - time.time()
                if attempt_timeout != timeout or left <= 0 or not await self._is_starting(timeout):
                    cause = error.__cause__ if isinstance(error, HeadUnreachable) else error
                    raise self._no_answer(attempt_timeout, cause or error) from error
                # A head is busiest in its first seconds, and has the time of its start for them.
                attempt_timeout = self.rpc.timeout = left
        self.rpc.timeout = timeout

    async def await_ready(self, *, quiet: bool, note: str = "") -> None:
        """Connect when the head has an address, and return when the cluster is ready; raises as `open`."""
        try:
            with Progress(self._job.record.ranks, quiet=quiet, note=note) as progress:
                await self._await_ready(self._job, progress)
        except BaseException:
            await run_to_end(self.close())
            raise

    async def _await_ready(self, job: ClusterJob, progress: Progress) -> None:
        while (record := await asyncio.to_thread(job.poll)).address is None:
            progress.show(job.description(), record.up, record.total)
            await asyncio.sleep(job.pause)
        await self.open()
        while True:
            progress.show(job.description(), job.record.up, job.record.total)
            if job.record.state in ("ready", "degraded"):
                return
            if job.record.state in ("failed", "closing"):
                raise await asyncio.to_thread(job.failure)
            await asyncio.sleep(POLL_INTERVAL_S)
            await self.ask_while_looking()

    async def forward(self, purpose: str, addresses: list[str]) -> list[str]:
        """Return addresses at which this process reaches addresses of the head's host: by ssh if the head is.

        The ports stay open until the next call for the same purpose with other addresses, or the end of the connection.

        Raises
        ------
        HeadUnreachable
            If ssh does not open the ports within ``workbench.connect-timeout``.
        """
        if self._tunnel is None:
            return addresses
        async with self._forwarding:
            tunnel, targets, local = self._forwarded.get(purpose, (None, [], []))
            if tunnel is not None and targets == addresses:
                return local
            if tunnel is not None:
                del self._forwarded[purpose]
                await tunnel.close()
            tunnel = Tunnel(self._tunnel.host)
            try:
                local = await tunnel.open(addresses, config.seconds("connect-timeout"))
            except BaseException:
                await run_to_end(tunnel.close())
                raise
            self._forwarded[purpose] = tunnel, addresses, local
            return local

    async def _is_starting(self, timeout: float) -> bool:
        """Return whether the head is starting and its host accepts connections to its port."""
        host, _, port = self.address.partition("://")[2].rpartition(":")
        if self._job.record.state != "starting" or self._tunnel is not None:
            return False  # a tunnel accepts connections also without a process at its other end
        try:
            async with asyncio.timeout(timeout):
                _, writer = await asyncio.open_connection(host, int(port))
        except OSError:
            return False
        writer.close()
        return True

    def _no_answer(self, timeout: float, error: BaseException) -> HeadUnreachable:
        record = self._job.record
        host, _, port = str(record.address).partition("://")[2].rpartition(":")
        route = f"through {self._tunnel.host}" if self._tunnel is not None else "from here"
        hint = f"The head may be busy or stuck. See the logs in {self._job.folder.logs}, and try again."
        if not record.process.is_local:
            hint += (
                f" If this host has no route to {record.process.host}, name a host that has a route and to which you "
                f"can log in: --ssh-tunnel {record.process.host}"
            )
        return HeadUnreachable(
            f"cluster {record.name!r}: its head on {record.process.host} does not answer at {host} port {port} "
            f"{route} within {timeout:.0f} s ({type(error).__name__}).",
            hint=hint,
        )

    async def close(self) -> None:
        """Close the connections that Dask's cluster has not closed already."""
        closing, self.rpc = self.rpc, None
        try:
            if closing is not None:
                await closing.close_rpc()
            if self._tunnel is not None:
                forwarded, self._forwarded = self._forwarded, {}
                await asyncio.gather(self._tunnel.close(), *(tunnel.close() for tunnel, *_ in forwarded.values()))
        finally:
            with contextlib.suppress(RuntimeError):  # no thread starts while the interpreter ends
                await run_to_end(self.end_reason())  # for later calls

    @property
    def head(self) -> Any:
        """As `HeadClient.head`; raises also if the head is known to have ended."""
        if self.rpc is None:
            raise self.lost()
        process = self._job.record.process
        if process.alive() is False:
            # Dask would try to connect until its timeout.
            raise HeadUnreachable(
                f"the head of cluster {self._job.record.name!r}, process {process.pid} on {process.host}, has ended. "
                f"Its logs are in {self._job.folder.logs}."
            )
        return self.rpc

    def lost(self) -> HeadUnreachable:
        """Return the error of a lost connection."""
        if self._end is not None:
            return self._job.folder.lost(self._end.reason)
        name = self._job.record.name
        return HeadUnreachable(
            f"this object is no longer connected to cluster {name!r}.",
            given=name,
            hint=f"MPICluster.attach({name!r}) connects again if the cluster still runs.",
        )

    async def ask(self, timeout: float | None = None) -> None:
        """Ask the head for the state of the cluster; raises as `call`."""
        self._job.record = from_dict(await self.call("workbench_status", timeout))

    async def ask_while_looking(self) -> None:
        """Ask the head for the state; if it fails meanwhile, raise the error of its record."""
        request = asyncio.ensure_future(self.ask())
        try:
            while not (await asyncio.wait({request}, timeout=_JOB_CHECK_INTERVAL_S))[0]:
                await asyncio.to_thread(self._job.poll)
            if request.exception():
                await asyncio.to_thread(self._job.poll)
            await request
        finally:
            request.cancel()

    async def change(self, operation: str, description: str, *, quiet: bool, **message: Any) -> None:
        """Wait until the head has changed its world, and show the progress of changes that may take long.

        Parameters
        ----------
        operation, **message
            As of `call`.
        description
            Description of the change.
        quiet
            Show nothing.

        Raises
        ------
        HeadUnreachable
            If the change is not done before the deadline of the head.
        """
        record, batch = self._job.record, self._job.batch
        # A time for new ranks to start, and one to get the results of the former ranks ...
        timeout = record.ready_within + config.seconds("start-timeout") + _ENDING_S
        if batch:
            timeout += config.seconds("queue-timeout")  # ... and more ranks need another job
        request = asyncio.ensure_future(self.call(operation, **message))
        try:
            async with asyncio.timeout(timeout):
                with Progress(record.total, quiet=quiet or not batch) as progress:
                    while not (await asyncio.wait({request}, timeout=_PROGRESS_INTERVAL_S))[0]:
                        await self.ask()
                        latest = self._job.record
                        progress.show(latest.message, latest.up, latest.total)
                    await request
        except StartError:
            raise  # `StartTimeout` is a `TimeoutError`
        except TimeoutError as error:
            raise HeadUnreachable(
                f"cluster {record.name!r}: {description} was not complete after {timeout:.0f} s.",
                hint=f"Wait for running calls, cells and tasks, and repeat. Logs: {self._job.folder.logs}",
            ) from error
        finally:
            request.cancel()
        await self.ask()

    async def refresh(self) -> Record:
        """Get the present record from the head.

        Raises
        ------
        HeadUnreachable
            If it does not answer, or has ended.
        """
        await self.while_it_runs(self.ask(config.seconds("connect-timeout")))
        return self._job.record

    async def while_it_runs(self, call: Awaitable[Any]) -> Any:
        """Return the result of a call, also of a method of Dask; raise as `refresh` if the connection is lost."""
        request = asyncio.ensure_future(call)
        try:
            if await self._done_while_it_runs(request):
                return request.result()
        except Exception as error:
            if not is_lost(error):
                raise
        await self.end_reason()
        raise self.lost()

    async def metrics(self) -> Update:
        """Return all measurements that the head has kept; raises as `refresh`."""
        from workbench.metrics.update import Update

        return Update.unpack(await self.call("workbench_metrics", config.seconds("connect-timeout"), since=0))

    def unreachable(self, error: BaseException) -> HeadUnreachable:
        """As `HeadClient.unreachable`."""
        record = self._job.record
        return HeadUnreachable(
            f"the head of cluster {record.name!r} at {record.address} does not answer ({type(error).__name__}).",
            hint=f"The head has ended, is stuck or is not reachable. See the logs in {self._job.folder.logs}.",
        )

    async def gone(self) -> bool:
        """Return whether the cluster has ended."""
        try:
            runs = await asyncio.to_thread(self._job.runs)
        except RuntimeError:  # no thread starts while the interpreter ends
            return False
        if runs:
            return False
        with contextlib.suppress(OSError):
            await self.ask(_ANSWER_TIMEOUT_S)
            return False  # the head runs, although its folder cannot be seen
        return True

    async def ask_to_end(self) -> None:
        """Ask the head to end the cluster; return when it has accepted, or has ended."""
        closing = self.call("workbench_close", config.seconds("connect-timeout"), reason="the user has closed it")
        await self._done_while_it_runs(closing)

    async def _done_while_it_runs(self, call: Awaitable[None]) -> bool:
        """Await a call while the cluster runs, since Dask would try to connect until its timeout."""
        request, ended = asyncio.ensure_future(call), asyncio.ensure_future(self._until_ended())
        try:
            # The check of the cluster's folder hangs with its file server, while the head answers.
            await asyncio.wait({request, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not request.done():
                await ended
                return False
            await request
        finally:
            request.cancel()
            ended.cancel()
        return True

    async def _until_ended(self) -> None:
        """Return when the cluster has ended, as its folder and the process of its head show."""
        while True:
            await asyncio.sleep(_JOB_CHECK_INTERVAL_S)
            if not await asyncio.to_thread(self._job.runs):
                return


def ask_once(job: ClusterJob, operation: str, **message: Any) -> Any:
    """Connect to the head for one call from any thread, and return the answer.

    Raises OSError if the head does not answer within ``workbench.connect-timeout``.
    """

    async def ask() -> Any:
        if job.record.address is None:
            raise HeadUnreachable("the head does not listen yet")
        connection = HeadConnection(job)
        try:
            async with asyncio.timeout(config.seconds("connect-timeout")):
                await connection.connect()
                return await connection.call(operation, **message)
        finally:
            await run_to_end(connection.close())

    # The thread of a notebook runs a loop already.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(ask())).result()
