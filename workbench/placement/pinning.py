"""Tasks that run on one rank and nowhere else, and the wait for their results.

Notes
-----
Dask forgets restrictions of single tasks when it fuses graphs. So tasks are pinned in graphs that are
complete when they are submitted: inputs are futures, nothing is left to optimize.
"""

from __future__ import annotations

import contextlib
import math
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

from workbench.errors import CollectiveFailed, PlacementError, RankLost
from workbench.hints import Command
from workbench.session.head_client import ClientHead

if TYPE_CHECKING:
    from distributed import Client, Future


PER = ("rank", "node")
"""The values of ``per``."""

_PINS: WeakKeyDictionary[Future[Any], Pin] = WeakKeyDictionary()
# Clients of `_forget_lost`.
_WATCHED: WeakSet[Client] = WeakSet()


@dataclass(frozen=True)
class Rank:
    """A worker, as the scheduler knows it."""

    address: str
    name: int | str
    host: str
    memory_limit: int | None
    """Bytes; None where there is no limit."""


@dataclass(frozen=True)
class Pin:
    """The worker that holds the value of a future."""

    address: str
    rows: int | None = None
    """Number of rows of a block; None where the number is unknown or the value is no block."""


@dataclass(frozen=True)
class PinnedTask:
    """A call of a function in a task. Futures and references stand for their values."""

    key: Any
    function: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    pin: Pin | None = None
    """The worker that runs the call; None: any worker."""

    @property
    def reference(self) -> Any:
        """The result, as an argument of another call."""
        from dask.task_spec import TaskRef

        return TaskRef(self.key)


def target_workers(client: Client, per: str) -> list[Rank]:
    """Return the ranks that get a block each, in rank order.

    Parameters
    ----------
    per
        One of `PER`.

    Raises
    ------
    PlacementError
        If `per` is not valid, or the cluster has no ranks.
    """
    if per not in PER:
        raise PlacementError(option="per", given=per, allowed=PER)
    # `client.scheduler_info` may show no workers: every two seconds the client overwrites the list without them.
    scheduler: Any = client.scheduler
    workers = client.sync(scheduler.identity, n_workers=-1)["workers"]
    ranks = [
        Rank(address, worker["name"], worker["host"], worker["memory_limit"] or None)
        for address, worker in workers.items()
        # A paused worker continues when its memory is free again; a closing worker does not.
        if worker["status"] in {"running", "paused"}
    ]
    if not ranks:
        raise PlacementError(
            "the cluster has no ranks now, and a placement needs at least one rank.",
            hint=("Wait for the ranks (client.wait_for_workers(n)) or read the logs: ", Command("logs")),
        )
    # Other names are those of ranks that are about to replace these.
    return select([rank for rank in ranks if isinstance(rank.name, int)] or ranks, per)


def select(ranks: Iterable[Rank], per: str) -> list[Rank]:
    """Return the ranks sorted; with ``per="node"`` only the first of each host."""
    ranks = sorted(ranks, key=lambda rank: (rank.name, "") if isinstance(rank.name, int) else (math.inf, rank.name))
    if per == "rank":
        return ranks
    first: dict[str, Rank] = {}
    for rank in ranks:
        first.setdefault(rank.host, rank)
    return list(first.values())


def cache_pin(future: Future[Any], pin: Pin) -> None:
    """Remember the worker of a future's value for as long as the future exists."""
    _PINS[future] = pin


def forget_pins() -> None:
    """Forget the workers of all values: the ranks may have changed."""
    _PINS.clear()


def _forget_lost(client: Client) -> None:
    """Forget the workers of all values when this client gets a report of a lost value, which may be made elsewhere."""
    if client in _WATCHED:
        return
    _WATCHED.add(client)
    handlers: Any = client._stream_handlers  # noqa: SLF001  (Dask has no event for it)
    handle = handlers["lost-data"]

    def lost(key: Any = None) -> None:
        forget_pins()
        handle(key)

    handlers["lost-data"] = lost


def cached_pin(future: Future[Any]) -> Pin | None:
    """Return the worker of a future's value, if this process pinned the value."""
    return _PINS.get(future)


def check_cluster(client: Client, futures: Iterable[Future[Any]], name: str) -> None:
    """Raise if futures belong to another cluster than the one of a client.

    Parameters
    ----------
    client
        The client that is to use the futures.
    futures
        Any futures.
    name
        The name of the futures in the message.

    Raises
    ------
    PlacementError
        If a future belongs to another cluster.
    """
    here = client._scheduler_identity  # noqa: SLF001  (the public method asks the scheduler)
    for other in {future.client for future in futures} - {client}:
        there = other._scheduler_identity  # noqa: SLF001  (as above)
        # A closed client has no identity.
        if there and there["id"] != here.get("id"):
            raise PlacementError(
                f"{name} is on the cluster at {there['address']}, and the client is connected to the cluster at "
                f"{here.get('address')}. Pass a client of the first cluster as client=, or fetch the value and send "
                "the value to the second cluster."
            )


def submit(
    client: Client, calls: Sequence[PinnedTask], keys: Sequence[Any], *, priority: int = 0, actors: bool = False
) -> list[Future[Any]]:
    """Send the calls to the scheduler in one message, and return the futures of `keys`.

    A pinned call runs on its worker only, and waits while that worker is busy. With `actors` the returned objects are
    Dask actors.
    """
    from dask.base import annotate
    from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
    from dask.task_spec import Task
    from distributed import Future

    given = [value for call in calls for value in (*call.args, *call.kwargs.values())]
    items = [item for value in given for item in (value if isinstance(value, list) else [value])]
    check_cluster(client, [item for item in items if isinstance(item, Future)], "an argument")
    _forget_lost(client)
    tasks = {
        call.key: Task(
            call.key,
            call.function,
            *map(_reference, call.args),
            **{name: _reference(value) for name, value in call.kwargs.items()},
        )
        for call in calls
    }
    pins = {call.key: call.pin for call in calls}
    workers = {key: [pin.address] for key, pin in pins.items() if pin}
    layer = MaterializedLayer(tasks, annotations={"workers": workers.get})
    graph = HighLevelGraph({"pinned": layer}, {"pinned": set()})
    # Calls that are submitted at the same time by other means have the same priority.
    options: dict[str, Any] = {"priority": priority, "fifo_timeout": "100 ms", "actors": actors}
    # Annotations of the user may let another worker run the calls, or let them wait for resources that no rank has.
    with annotate(allow_other_workers=False, resources={}):
        futures: list[Future[Any]] = client.get(graph, list(keys), sync=False, **options)
    for future in futures:
        if pin := pins[future.key]:
            cache_pin(future, pin)
    return futures


def rediscover(client: Client, futures: Sequence[Future[Any]], per: str) -> list[Pin]:
    """Return and remember the pins of blocks that another process placed.

    Raises
    ------
    PlacementError
        If a block is not on its rank.
    RankLost
        If a block was lost with its rank.
    """
    client.sync(wait_computed, futures, "a block")  # after a loss of ranks, until their blocks are made again
    ranks = target_workers(client, per)
    holders = client.who_has(futures)
    if len(futures) < len(ranks):
        # Results of a call on some of the ranks are in memory, on these ranks alone.
        held = {address for addresses in holders.values() for address in addresses}
        ranks = [rank for rank in ranks if rank.address in held] or ranks
    for number, (future, rank) in enumerate(zip_longest(futures, ranks[: len(futures)])):
        if rank is None or rank.address not in holders[future.key]:
            raise PlacementError(
                f"block {number} of {len(futures)} is not on the rank on which the block was placed. The cluster has "
                f"{len(ranks)} ranks now. Place the data again: X = place(X)."
            )
    name = f"length-{uuid.uuid4().hex}"
    calls = [
        PinnedTask((name, number), row_count, (future,), pin=Pin(rank.address))
        for number, (future, rank) in enumerate(zip(futures, ranks, strict=False))
    ]
    lengths = client.gather(submit(client, calls, [call.key for call in calls]))
    pins = [Pin(rank.address, length) for rank, length in zip(ranks, lengths, strict=False)]
    for future, pin in zip(futures, pins, strict=True):
        cache_pin(future, pin)
    return pins


def row_count(block: Any) -> int:
    """Return the rows of a block; `len` refuses sparse matrices."""
    rows: int = block.shape[0]
    return rows


def locate(client: Client, futures: Sequence[Future[Any]]) -> list[Pin | None]:
    """Return the workers of any futures, waiting for those that are not pinned; None for a future that failed."""
    from distributed.client import _wait

    pins = {future.key: cached_pin(future) for future in futures}
    elsewhere = [future for future in futures if pins[future.key] is None]
    if elsewhere:
        client.sync(_wait, elsewhere)  # `wait` would use the default client, which may be another client
        pins |= {key: Pin(min(holders)) for key, holders in client.who_has(elsewhere).items() if holders}
    return [pins[future.key] for future in futures]


def _reference(value: Any) -> Any:
    """Return an argument of a task in which references replace futures, also in a list."""
    from dask.task_spec import List, TaskRef

    # Futures are references too, but the task needs only the key.
    if isinstance(value, TaskRef):
        return TaskRef(value.key)
    if isinstance(value, list) and any(isinstance(item, TaskRef) for item in value):
        return List(*map(_reference, value))
    return value


async def wait_computed(futures: Sequence[Future[Any]], role: str) -> None:
    """Wait for futures, on the event loop of their client; raise the error of a future that failed.

    Parameters
    ----------
    role
        Their role for messages: ``"an argument of fit"``.

    Raises
    ------
    RankLost
        If a block was lost with its rank.
    CollectiveFailed
        If a future was released, or its value was lost with a rank.
    HeadUnreachable
        If the head was lost, or the client was closed.
    """
    from distributed.client import FuturesCancelledError, _wait

    while any(future.status in ("pending", "lost") for future in futures):
        # The loop below reports which future was canceled.
        with contextlib.suppress(FuturesCancelledError):
            await _wait(futures)
    for future in futures:
        if future.cancelled():
            pin, head = cached_pin(future), ClientHead(future.client, f"the wait for {role}")
            if pin is not None and pin.address not in (await head.call("identity"))["workers"]:
                raise RankLost(f"{future.key!r}, {role}, was lost with its rank. Place the data again: X = place(X).")
            raise CollectiveFailed(
                f"{future.key!r}, {role}, was released, or lost with its rank. Place the data again, X = place(X), or "
                "broadcast the object again."
            )
        if future.status != "finished":
            await future._result()  # noqa: SLF001  (raises the error of the future)
