"""The moves of clusters to their next jobs, for which requests of this process wait."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from workbench.errors import RankLost

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Future

    from distributed import Client
    from distributed.deploy.cluster import Cluster

# The client in the next job, by the object of the cluster in the job before.
_moves: WeakKeyDictionary[Cluster, Future[Client]] = WeakKeyDictionary()
_latest: list[Future[Client]] = []
kept: WeakKeyDictionary[Cluster, dict[str, Any]] = WeakKeyDictionary()
"""The placed collections that this process keeps, by the objects of the clusters and by name."""
replaced: dict[str, Any] = {}
"""Placed collections that were restored in the next job, by the names of the former ones."""
_POLL_S = 1.0


def note(client: Client, named: Mapping[str, Any]) -> None:
    """Note the placed collections that this process keeps on the cluster of a client; None: no longer."""
    if client.cluster is not None:
        known = {**kept.get(client.cluster, {}), **named}
        kept[client.cluster] = {name: value for name, value in known.items() if value is not None}
        held = {id(value) for values in kept.values() for value in values.values()}
        for name in [name for name, value in replaced.items() if id(value) not in held]:
            del replaced[name]


def begun(cluster: Cluster) -> Future[Client]:
    """Return the future of a client in the next job of a cluster whose job ends."""
    from concurrent.futures import Future  # the command imports this module, and starts faster without logging

    if cluster not in _moves:
        _moves[cluster] = Future()
        _latest[:] = [_moves[cluster]]
    return _moves[cluster]


def followed(client: Client | None) -> Client | None:
    """Return the client in the next job if the cluster of a client (None: of the last move) moves, else the client."""
    if client is None and _latest:
        client = wait(_latest[0])
        if getattr(client, "status", "") == "closed" and client.cluster not in _moves:
            return None
    while (cluster := getattr(client, "cluster", None)) is not None and cluster in _moves:
        client = wait(_moves[cluster])
    return client


def wait(move: Future[Client]) -> Client:
    """Wait for the next job: as long as the job waits in its queue, or until Ctrl-C."""
    if not move.done():
        print("the cluster moves to its next job; this request waits for the job")  # noqa: T201  (for the user)
    while True:
        with contextlib.suppress(TimeoutError):
            return move.result(_POLL_S)


def there(collection: Any) -> Any:
    """Return the collection in the next job that was restored in the place of a placed one of a former job.

    Raises
    ------
    RankLost
        If the collection was not kept.
    """
    while (name := collection._name) in replaced:  # noqa: SLF001  (the name of arrays and of dataframes)
        collection = replaced[name]
        if replaced.get(collection._name) is None:  # noqa: SLF001  (as above)
            return collection
    raise RankLost(
        "a placed collection was on the ranks of a job that has ended, and was not kept. Place the collection again, "
        "and keep it with workbench.keep."
    )
