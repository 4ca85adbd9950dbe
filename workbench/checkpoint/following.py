"""A notebook follows its cluster to the next job: new objects, and what the notebook keeps is there again."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Collection
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from workbench.deploy import display
from workbench.deploy.folder import ClusterFolder
from workbench.errors import CheckpointNotFound, ClusterNotFound, InvalidRequest, PlacementError
from workbench.placement import sources
from workbench.session import moves
from workbench.session.current import notebook_names

if TYPE_CHECKING:
    from distributed import Client
    from distributed.deploy.cluster import Cluster

# Seconds between two looks at the record of a cluster whose head was killed.
_POLL_S = 2.0


def place_again(cluster: Any, ranks: int) -> None:
    """Place the collections of the notebook again after a change of the ranks, and what the notebook keeps."""
    from workbench.checkpoint.client import keep_restored
    from workbench.placement import place

    kept = moves.kept.get(cluster, {})
    display.placed_again(*place.place_again(notebook_names(), str(cluster.scheduler_info["id"]), kept), ranks)
    with contextlib.suppress(PlacementError):  # the version before has what could not be placed again
        keep_restored(cluster.get_client(), kept)


def follow(former: Any) -> None:
    """Have a thread connect to the next job of a cluster, the `workbench.MPICluster` of whose former job is closed."""
    arguments = former, moves.begun(former)
    threading.Thread(target=_follow, args=arguments, name="next-job", daemon=True).start()


def _follow(former: Any, move: Future[Client]) -> None:
    from workbench.checkpoint.client import keep_restored

    kept = moves.kept.pop(former, {})
    try:
        cluster = _attached(former)
        client = cluster.get_client()
        found, missing = _restored(client, kept)
        keep_restored(client, found)
    except BaseException as error:  # noqa: BLE001  (raised where a request waits)
        move.set_exception(error)
        former.on_moved(None, f"the notebook is not connected to the next job: {error}")
        return
    there = {id(kept[name]): found[name] for name in found}
    for name in found:
        moves.replaced[kept[name]._name] = found[name]  # noqa: SLF001  (of arrays and of dataframes)
    names, lost = notebook_names(), []
    for name, value in list(names.items()):
        if value is former:
            names[name] = cluster
        elif getattr(value, "cluster", None) is former:
            names[name] = client
        elif id(value) in there:
            names[name] = there[id(value)]
        elif _was_placed_by(value, former):
            lost.append(name)
    move.set_result(client)
    words = f"job {cluster.record.job} continues the cluster"
    words += f"; restored: {', '.join(found)}" * bool(found) + f"; lost, since not kept: {', '.join(lost)}" * bool(lost)
    words = "; ".join([words, *missing])
    former.on_moved(cluster, words)


def _restored(client: Client, names: Collection[str]) -> tuple[dict[str, Any], list[str]]:
    """Return collections by name, and why others are lost: another notebook keeps them no longer, or by a damage."""
    from workbench.checkpoint.client import restore

    found: dict[str, Any] = {}
    missing = []
    for name in names:
        try:
            found |= vars(restore(None, name, client=client))
        except (CheckpointNotFound, InvalidRequest) as error:
            missing.append(f"{name} could not be restored: {error}")
    return found, missing


def _attached(former: Any) -> Any:
    """Return the object of the cluster in its next job, when that is ready."""
    name, known = former.record.name, former.record
    folder = ClusterFolder.of(known)
    while True:
        record = folder.read()
        if record.id != known.id:
            raise ClusterNotFound(f"cluster {name!r} has ended, and another cluster has its name.")
        if (record.turn, record.process) != (known.turn, known.process) or record.state == "submitted":
            return type(former).attach(name, quiet=True)
        time.sleep(_POLL_S)


def _was_placed_by(value: Any, cluster: Cluster) -> bool:
    found = sources.find_blocks(value)
    return found is not None and found[1][0].client.cluster is cluster
