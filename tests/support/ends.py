"""Checks of a connection, written once for its two ends, wherever these are: two ranks, or two tasks of a process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from distributed.comm import connect, listen

from support.patience import DEADLINE
from workbench.comm import certificates, traffic


class End:
    """Where a check runs; all ends run the same check at the same time, in pairs of a left and a right one."""

    def __init__(self, rank: int, size: int, folder: Path | None, gather: Callable[[Any], Awaitable[Any]]) -> None:
        self.rank, self.size = rank, size
        self.left, self.partner = rank % 2 == 0, rank ^ 1
        self.gather = gather
        """Return what all ends give, by rank, once all have."""
        self.encrypted, self.folder = folder is not None, folder
        security = certificates.security(folder) if folder is not None else None
        self.listen_args = security.get_listen_args("worker") if security else {}
        self.connect_args = security.get_connection_args("worker") if security else {}
        self.plain_scheme = "tls" if security else "tcp"
        """What distributed itself has for this."""

    async def swap(self, value: Any = None) -> Any:
        """Return what the partner gives."""
        return (await self.gather(value))[self.partner]

    @asynccontextmanager
    async def listener(self, scheme: str = "mpi", **options: Any) -> AsyncIterator[tuple[Any, asyncio.Queue[Any]]]:
        """Listen; what connects is put into the queue."""
        comms: asyncio.Queue[Any] = asyncio.Queue()
        async with listen(f"{scheme}://127.0.0.1", comms.put, **self.listen_args, **options) as listener:
            yield listener, comms

    async def connect(self, address: str, timeout: float = DEADLINE / 2, **options: Any) -> Any:
        """Connect to an address."""
        return await connect(address, timeout=timeout, **self.connect_args, **options)

    async def pair(self, scheme: str = "mpi", *, left: str = "mpi", **options: Any) -> Any:
        """Connect the partners, `scheme` being the right one's, and return this end."""
        if self.left:
            address = await self.swap()
            return await self.connect(address.replace(f"{scheme}://", f"{left}://"), **options)
        async with self.listener(scheme, **options) as (listener, comms):
            await self.swap(listener.contact_address)
            return await comms.get()


Check = Callable[[End], Awaitable[None]]


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition without a notification."""
    async with asyncio.timeout(DEADLINE / 2):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


def sent_by_mpi(peer: int) -> tuple[int, int]:
    """Return number and bytes of the frames that this process has sent to a rank over MPI."""
    rows = [row for row in traffic() if (row["peer"], row["way"]) == (peer, "mpi")]
    return sum(row["sent_messages"] for row in rows), sum(row["sent_bytes"] for row in rows)


async def together(check: Check, folder: Path | None = None) -> None:
    """Run both ends of a check in this process."""
    given: dict[int, Any] = {}
    complete: list[asyncio.Future[dict[int, Any]]] = []

    async def gather(rank: int, value: Any = None) -> dict[int, Any]:
        given[rank] = value
        if len(given) == 1:
            complete.append(asyncio.get_running_loop().create_future())
        else:
            complete[-1].set_result(dict(given))
            given.clear()
        return await complete[-1]

    async with asyncio.timeout(DEADLINE), asyncio.TaskGroup() as group:
        for rank in range(2):
            group.create_task(check(End(rank, 2, folder, partial(gather, rank))))
