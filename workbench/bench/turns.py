"""Runs a program in a separate MPI world, one request at a time; between requests the ranks sleep.

The program is one of `workbench.bench.world` whose ``measure(address, ...)`` calls `serve` on every rank.
"""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from multiprocessing.connection import Client, Connection
from secrets import token_hex
from typing import Any

from workbench.bench import world
from workbench.host import node_dirs
from workbench.launch.mpi_library import MPI

# Seconds between two looks whether a world still lives; for its end; for its end after a rank of it has failed.
_LOOK, _END, _LAST_WORDS = 0.5, 30.0, 10.0


class Turns:
    """A program that waits for its next turn."""

    def __init__(self, running: world.World, connections: list[Connection]) -> None:
        self._running, self._connections = running, connections

    def take(self, order: Any, within: float) -> list[Any]:
        """Have every rank take a turn, and return what they answer, in the order of the ranks.

        Parameters
        ----------
        order
            What each rank is given, not None; it goes by pickle.
        within
            Seconds until all have answered.

        Raises
        ------
        LaunchError
            If the world does not answer in time, or has ended.
        """
        deadline = time.monotonic() + within
        try:
            for connection in self._connections:
                connection.send(order)
            return [_answer(connection, deadline) for connection in self._connections]
        except TimeoutError:
            raise self._running.failed(f"was not done with its turn after {within:.0f} s") from None
        except (EOFError, OSError):
            # Once it has ended by itself, all that it said is there.
            with suppress(subprocess.TimeoutExpired):
                self._running.process.wait(_LAST_WORDS)
            raise self._running.failed("took no turn") from None


def _answer(connection: Connection, deadline: float) -> Any:
    if not connection.poll(max(0.0, deadline - time.monotonic())):
        raise TimeoutError
    return connection.recv()


@contextmanager
def taking(found: MPI, ranks: int, program: str, within: float, **options: Any) -> Iterator[Turns]:
    """Start a program that takes turns, and end it.

    Parameters
    ----------
    found
        The MPI to start it with.
    ranks
        Size of its world.
    program
        Name of its module.
    within
        Seconds for its start.
    **options
        What its ``measure`` is called with beside the address.

    Raises
    ------
    LaunchError
        If it fails, or takes too long to start or to end.
    """
    name = token_hex(16)
    address = str(node_dirs.sockets(name) / "bench.sock")
    try:
        with closing(socket.socket(socket.AF_UNIX)) as listener, ExitStack() as stack:
            listener.bind(address)
            listener.listen(ranks)
            listener.settimeout(_LOOK)
            running = stack.enter_context(world.started(found, ranks, program, {"address": address} | options))
            deadline = time.monotonic() + within
            connections = {}
            for _ in range(ranks):
                connection = stack.enter_context(_accepted(listener, running, deadline))
                connections[connection.recv()] = connection
            yield Turns(running, [connections[rank] for rank in range(ranks)])
            for connection in connections.values():
                connection.send(None)
            running.result(_END)
    finally:
        node_dirs.remove(name)


def _accepted(listener: socket.socket, running: world.World, deadline: float) -> Connection:
    """Return the connection of the next rank."""
    while True:
        try:
            return Connection(listener.accept()[0].detach())
        except TimeoutError:
            if running.process.poll() is not None:
                raise running.failed("ended before all of its ranks were there") from None
            if time.monotonic() > deadline:
                raise running.failed("did not have all of its ranks in time") from None


def serve(address: str, rank: int, take: Callable[[Any], Any]) -> None:
    """Serve requests from this address until the end message; on every rank.

    Parameters
    ----------
    address
        Where.
    rank
        The number of this rank.
    take
        Is given the order of each turn, and returns the answer.
    """
    with closing(Client(address, "AF_UNIX")) as connection:
        connection.send(rank)
        while (order := connection.recv()) is not None:
            connection.send(take(order))
