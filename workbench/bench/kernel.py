"""The kernel of the SPMD bench, as each rank computes it: in the body of a call, and in a bare MPI program."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection
from secrets import token_hex
from typing import TYPE_CHECKING

import numpy as np

from workbench import scratch
from workbench.bench import world
from workbench.launch.mpi import MPI

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

COLUMNS = 32
"""Of the block of each rank."""
# Seconds between two looks whether a bare world still lives; for its end.
_LOOK, _END = 0.5, 30.0


@dataclass(frozen=True)
class Turn:
    """What one rank did in one turn."""

    seconds: float
    """Time that the kernel took, again and again."""
    cpu_seconds: float
    """CPU time of its thread."""
    gradient: np.ndarray
    """Shape (columns,): the last result."""
    setting: tuple[str | int | None, ...]
    """What the speed depends on beside: number of threads, of cores, alignment of the block."""


def gradient(X: np.ndarray, y: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return the gradient of the logistic loss at the weights `w`."""
    product: np.ndarray = X.T @ (1 / (1 + np.exp(-(X @ w))) - y)
    return product


def block(comm: Intracomm, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the block of a rank and its labels, shapes (rows, columns) and (rows,)."""
    random = np.random.default_rng(comm.rank)
    return random.standard_normal((rows, COLUMNS)), random.integers(0, 2, rows).astype(float)


def turn(comm: Intracomm, X: np.ndarray, y: np.ndarray, repeats: int) -> Turn:
    """Compute the kernel so many times on every rank, all beginning at once."""
    w = np.linspace(-1, 1, X.shape[1])
    comm.Barrier()
    begin, cpu = time.perf_counter(), time.thread_time()
    for _ in range(repeats):
        result = gradient(X, y, w)
    took, used = time.perf_counter() - begin, time.thread_time() - cpu
    setting = (os.environ.get("OMP_NUM_THREADS"), len(os.sched_getaffinity(0)), X.ctypes.data % 64)
    return Turn(took, used, result, setting)


class BareWorld:
    """An MPI program of its own that takes turns when it is told to, and else sleeps."""

    def __init__(self, its: world.World, connections: list[Connection]) -> None:
        self._its, self._connections = its, connections

    def turn(self, repeats: int, within: float) -> list[Turn]:
        """Have every rank take a turn, and return them in the order of the ranks.

        Raises
        ------
        LaunchError
            If the world does not answer within so many seconds.
        """
        try:
            for connection in self._connections:
                connection.send(repeats)
            return [_answer(connection, within) for connection in self._connections]
        except (EOFError, OSError) as error:
            raise self._its.failed(f"took no turn: {type(error).__name__}") from None


def _answer(connection: Connection, within: float) -> Turn:
    if not connection.poll(within):
        raise TimeoutError
    told: Turn = connection.recv()
    return told


@contextmanager
def bare(found: MPI, ranks: int, rows: int, within: float) -> Iterator[BareWorld]:
    """Start a bare world, and end it.

    Parameters
    ----------
    found
        The MPI to start it with.
    ranks
        Size of the world.
    rows
        Of the block of each rank.
    within
        Seconds for its start.

    Raises
    ------
    LaunchError
        If it fails, or takes too long to start or to end.
    """
    name = token_hex(16)
    address = str(scratch.sockets(name) / "bench.sock")
    try:
        with closing(socket.socket(socket.AF_UNIX)) as listener, ExitStack() as stack:
            listener.bind(address)
            listener.listen(ranks)
            listener.settimeout(_LOOK)
            its = stack.enter_context(world.started(found, ranks, __name__, {"address": address, "rows": rows}))
            deadline = time.monotonic() + within
            connections = {}
            for _ in range(ranks):
                connection = stack.enter_context(_accepted(listener, its, deadline))
                connections[connection.recv()] = connection
            yield BareWorld(its, [connections[rank] for rank in range(ranks)])
            for connection in connections.values():
                connection.send(0)
            its.result(_END)
    finally:
        scratch.remove(name)


def _accepted(listener: socket.socket, its: world.World, deadline: float) -> Connection:
    """Return the connection of the next rank."""
    while True:
        try:
            return Connection(listener.accept()[0].detach())
        except TimeoutError:
            if its.process.poll() is not None:
                raise its.failed("ended before all of its ranks were there") from None
            if time.monotonic() > deadline:
                raise its.failed("did not have all of its ranks in time") from None


def measure(address: str, rows: int) -> None:
    """Take turns for whoever listens at this address, until told to end. Runs on every rank of a bare world."""
    from mpi4py import MPI

    from workbench.placing.rows import aligned

    comm = MPI.COMM_WORLD
    X, y = map(aligned, block(comm, rows))
    with closing(Client(address, "AF_UNIX")) as connection:
        connection.send(comm.rank)
        while repeats := connection.recv():
            connection.send(turn(comm, X, y, repeats))
