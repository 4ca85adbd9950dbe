"""Bare clusters: a plain scheduler in this process, and an MPI world whose ranks are plain workers, none under TLS.

Two of them differ in the protocol between the workers. Without TLS every local user can connect while the workers run:
they listen only on 127.0.0.1.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from distributed import Client, Scheduler, SpecCluster, Worker
from distributed.security import Security
from distributed.system import MEMORY_LIMIT

from workbench import comm
from workbench.bench import world
from workbench.comm.unix_http import UnixHTTP
from workbench.errors import LaunchError
from workbench.host import node_dirs
from workbench.launch.mpi_library import MPI

_HOST = "127.0.0.1"
# Seconds for the workers to register; for the world to end after its scheduler; of these, for frames on their way.
_START, _END, _LEAVE = 60.0, 30.0, 10.0


class _Scheduler(UnixHTTP, Scheduler):
    pass


class _Worker(UnixHTTP, Worker):
    pass


@contextmanager
def start(found: MPI, protocol: str, ranks: int) -> Iterator[Client]:
    """Start a bare cluster, and end it.

    Parameters
    ----------
    found
        The MPI to start it with.
    protocol
        Protocol between the workers: ``"tcp"`` or ``"mpi"``.
    ranks
        Number of workers.

    Yields
    ------
    client
        A client that has all workers.

    Raises
    ------
    LaunchError
        If the world fails while it starts or ends, or takes too long for it.
    """
    name = secrets.token_hex(16)
    options = {
        "protocol": "tcp",
        "host": _HOST,
        "port": 0,
        "security": Security(),
        "dashboard": False,
        "http_socket": node_dirs.sockets(name) / "scheduler.sock",
    }
    try:
        spec = {"cls": _Scheduler, "options": options}
        with SpecCluster(scheduler=spec, name=name, silence_logs=logging.ERROR) as cluster:
            given = {"scheduler": cluster.scheduler_address, "protocol": protocol, "name": name}
            with world.started(found, ranks, "workbench.bench.bare", given) as running:
                with Client(cluster, timeout=_START) as client:
                    _await_workers(client, running)
                    yield client
                # The workers end with their scheduler, and the world with its workers.
                cluster.close(_END)
                running.result(_END)
    finally:
        node_dirs.remove(name)


def _await_workers(client: Client, running: world.World) -> None:
    deadline = time.monotonic() + _START
    while True:
        try:
            client.wait_for_workers(running.ranks, timeout=0.5)
        except TimeoutError:
            if running.process.poll() is not None:
                raise running.failed("ended before all workers were there") from None
            if time.monotonic() > deadline:
                raise running.failed(f"had not all workers after {_START:.0f} s") from None
        else:
            return


def measure(scheduler: str, protocol: str, name: str) -> None:
    """Be a worker until the scheduler ends. Runs on every rank.

    Parameters
    ----------
    scheduler
        Its address.
    protocol
        Protocol to other workers.
    name
        Of the cluster, and of its world.

    Raises
    ------
    LaunchError
        If transfers are outstanding at the end.
    """
    from mpi4py import MPI

    everyone = MPI.COMM_WORLD
    if protocol == "mpi":
        comm.join(everyone.Dup(), name)
    # As in a rank: the event loop has a separate thread.
    with ThreadPoolExecutor(1, "dask-worker") as thread:
        thread.submit(asyncio.run, _work(scheduler, protocol, name, everyone.rank, everyone.size)).result()
    if not comm.leave(_LEAVE):
        raise LaunchError(f"rank {everyone.rank}: transfers are outstanding {_LEAVE:.0f} s after the worker has ended")


async def _work(scheduler: str, protocol: str, name: str, rank: int, size: int) -> None:
    memory = MEMORY_LIMIT // size
    comm.configure_memory(memory)
    worker = _Worker(
        scheduler,
        name=rank,
        nthreads=1,
        memory_limit=memory,
        host=_HOST,
        protocol=protocol,
        security=Security(),
        dashboard=False,
        http_socket=node_dirs.sockets(name) / f"rank-{rank}.sock",
        local_directory=str(node_dirs.spill(name)),
        death_timeout=_START,
    )
    async with worker:
        await worker.finished()
