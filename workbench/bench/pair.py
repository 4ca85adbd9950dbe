"""What the two ranks of the transport bench do: rank 0 sends and times, rank 1 sends back what it gets.

Every arm has a separate connection, all of them stay open, and the arms take turns within each size, in an order
in which none has an advantage from the one before it.
"""

from __future__ import annotations

import asyncio
import os
import statistics
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from distributed.comm.core import CommClosedError, connect, listen
from distributed.protocol.serialize import to_serialize
from mpi4py import MPI

from workbench import comm
from workbench.bench.buffers import KINDS, octets
from workbench.bench.kernel import gradient
from workbench.bench.report import alternate
from workbench.bench.sizes import KIB, MIB
from workbench.comm import certificates
from workbench.gpu.tensors import is_tensor, register_messages

SCHEMES = {"tcp": "tcp", "mpi": "mpi", "tls": "tls", "mpi_tls": "mpi"}
"""Scheme of the address of every arm that is a Dask connection; those named so are under TLS."""
ARMS = ("tcp", "mpi", "raw", "tls", "mpi_tls")
OURS = ("mpi", "mpi_tls")

# Bytes and columns of the block that the kernel works on, and how often it does.
_BLOCK, _COLUMNS, _KERNELS = 64 * MIB, 32, 31
# Seconds for the two ranks to part.
_LEAVE = 10.0


@dataclass
class Turn:
    """Some round trips of one arm, one after another."""

    seconds: list[float] = field(default_factory=list)
    """Time of each."""
    received: Any = None
    """What came back last."""
    fine: bool = True
    """Whether all that was received, on both ranks, was aligned and writable."""


Arm = Callable[[Any, int], Awaitable[Turn]]
"""Sends a payload there and back so many times."""


def measure(folder: str, sizes: list[int], rounds: int | None, buffers: str) -> dict[str, Any]:
    """Measure all arms at all sizes. Runs on both ranks.

    Parameters
    ----------
    folder
        Where the certificate lies.
    sizes
        Of the payload, in bytes.
    rounds
        Turns of every arm at each size; None: as many as the size deserves.
    buffers
        Kind of the payload, one of `workbench.bench.buffers.KINDS`.

    Returns
    -------
    result : dict
        ``rows``, and of the kernel ``kernel`` and ``kernel_tcp``: its time on a received block over that on a local
        one; empty on rank 1.
    """
    if buffers == "cuda":
        register_messages()
    comm.join(MPI.COMM_WORLD.Dup(), world="bench")
    raw = MPI.COMM_WORLD.Dup()
    run = _serve(raw, Path(folder), max(sizes)) if raw.rank else _ask(raw, Path(folder), sizes, rounds, KINDS[buffers])
    result = asyncio.run(run)
    comm.leave(_LEAVE)
    return result


def turns(nbytes: int) -> tuple[int, int]:
    """Return how many turns every arm has at a size, and how many round trips one turn has."""
    if nbytes <= 64 * KIB:
        return 60, 11
    if nbytes < 2 * MIB:
        return 40, 5
    return max(10, min(40, 1024 * MIB // nbytes)), 1


def is_fine(buffer: Any) -> bool:
    """Return whether a buffer starts at a multiple of 64 bytes and is writable."""
    if is_tensor(buffer):
        return bool(buffer.data_ptr() % 64 == 0)
    array = octets(buffer)
    return bool(array.__array_interface__["data"][0] % 64 == 0 and array.flags.writeable)


# -- rank 1 ----------------------------------------------------------------------------------------------------


async def _serve(raw: MPI.Intracomm, folder: Path, most: int) -> dict[str, Any]:
    """Listen for all arms until rank 0 has ended."""
    buffer = np.empty(most, np.uint8)
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def echo(connection: Any) -> None:
        try:
            while (message := await connection.read())["op"] != "end":
                if message["op"] == "raw":
                    _raw_echo(raw, buffer[: message["nbytes"]], message["trips"])
                else:
                    x = message["x"]
                    await connection.write({"x": to_serialize(x), "fine": is_fine(x)})
                    # What is held while the next message comes in cannot be where it goes.
                    del x
                del message
        except CommClosedError:
            return
        except Exception as error:  # noqa: BLE001  (the main coroutine ends this world with it)
            ended.set_exception(error)
        else:
            ended.set_result(None)

    security = certificates.security(folder).get_listen_args("worker")
    async with AsyncExitStack() as stack:
        addresses = {}
        for arm, scheme in SCHEMES.items():
            arguments = security if arm.endswith("tls") else {}
            listener = await stack.enter_async_context(listen(f"{scheme}://127.0.0.1:0", echo, **arguments))
            addresses[arm] = listener.contact_address
        raw.bcast(addresses, root=1)
        await ended
    return {}


def _raw_echo(raw: MPI.Intracomm, buffer: np.ndarray, trips: int) -> None:
    with _own_core(raw.rank):
        raw.send(None, dest=0)
        for _ in range(trips):
            raw.Recv(buffer, source=0)
            raw.Send(buffer, dest=0)


@contextmanager
def _own_core(rank: int) -> Iterator[None]:
    """Pin this thread to one core: two threads that spin on one core wait for each other's time slice, 4 ms."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(allowed)[rank % len(allowed)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


# -- rank 0 ----------------------------------------------------------------------------------------------------


async def _ask(
    raw: MPI.Intracomm, folder: Path, sizes: list[int], rounds: int | None, buffer: Callable[[np.ndarray], Any]
) -> dict[str, Any]:
    addresses = raw.bcast(None, root=1)
    security = certificates.security(folder).get_connection_args("worker")
    connections = {}
    for arm, address in addresses.items():
        connections[arm] = await connect(address, **(security if arm.endswith("tls") else {}))
    arms: dict[str, Arm] = {arm: partial(_trips, connection) for arm, connection in connections.items()}
    arms["raw"] = partial(_raw_trips, raw, connections["tcp"], np.empty(max(sizes), np.uint8))
    random = np.random.default_rng(0)
    rows = [await _row(arms, buffer(random.integers(0, 256, nbytes, np.uint8)), rounds) for nbytes in sizes]
    kernel = await _kernel(arms, min(_BLOCK, max(sizes)))
    await connections["tcp"].write({"op": "end"})
    for connection in connections.values():
        await connection.close()
    return {"rows": rows, **kernel}


async def _trips(connection: Any, payload: Any, trips: int) -> Turn:
    turn = Turn()
    for _ in range(trips):
        # What is held while the next message comes in cannot be where it goes.
        turn.received = None
        begin = perf_counter()
        await connection.write({"op": "echo", "x": to_serialize(payload)})
        message = await connection.read()
        turn.seconds.append(perf_counter() - begin)
        turn.received = message.pop("x")
        turn.fine = turn.fine and message["fine"] and is_fine(turn.received)
    return turn


async def _raw_trips(raw: MPI.Intracomm, control: Any, buffer: np.ndarray, payload: Any, trips: int) -> Turn:
    payload = octets(payload)
    await control.write({"op": "raw", "nbytes": payload.nbytes, "trips": trips})
    turn = Turn(received=buffer[: payload.nbytes])
    with _own_core(raw.rank):
        # From here on rank 1 is in MPI alone.
        raw.recv(source=1)
        for _ in range(trips):
            begin = perf_counter()
            raw.Send(payload, dest=1)
            raw.Recv(turn.received, source=1)
            turn.seconds.append(perf_counter() - begin)
    return turn


async def _row(arms: Mapping[str, Arm], payload: Any, rounds: int | None) -> dict[str, Any]:
    nbytes = octets(payload).nbytes
    count, trips = turns(nbytes)
    count = rounds or count
    seconds: dict[str, list[float]] = {arm: [] for arm in ARMS}
    fine = True
    # Round 0 warms up.
    for number, arm in alternate(ARMS, count):
        turn = await arms[arm](payload, trips)
        if number in {0, count}:
            _checked(arm, turn, payload)
        if number:
            # The first of several comes after another arm, which has had the caches.
            seconds[arm] += turn.seconds[1:] or turn.seconds
        if arm in OURS:
            fine = fine and turn.fine
    times = {f"{arm}_us": statistics.median(seconds[arm]) / 2 * 1e6 for arm in ARMS}
    return {"nbytes": nbytes, **times, "aligned": fine}


def _checked(arm: str, turn: Turn, sent: Any) -> Any:
    if turn.received is None or not np.array_equal(octets(turn.received), octets(sent)):
        raise ValueError(f"{arm}: other bytes came back than the {octets(sent).nbytes} that were sent")
    return turn.received


async def _kernel(arms: Mapping[str, Arm], nbytes: int) -> dict[str, float]:
    """Time the kernel on a block where it was made, and on the same one received."""
    rows = max(1, nbytes // (8 * _COLUMNS))
    random = np.random.default_rng(1)
    local = random.standard_normal((rows, _COLUMNS))
    y, w = random.integers(0, 2, rows).astype(float), random.standard_normal(_COLUMNS)
    blocks: dict[str, np.ndarray] = {"local": local}
    for arm in ("mpi", "tcp"):
        blocks[arm] = _checked(arm, await arms[arm](local, 1), local)
    seconds: dict[str, list[float]] = {block: [] for block in blocks}
    for number, block in alternate(list(blocks), _KERNELS):
        begin = perf_counter()
        gradient(blocks[block], y, w)
        if number:
            seconds[block].append(perf_counter() - begin)
    median = {block: statistics.median(times) for block, times in seconds.items()}
    return {"kernel": median["mpi"] / median["local"], "kernel_tcp": median["tcp"] / median["local"]}
