"""The results of ranks, sent to the ranks that replace them: keys, futures and graphs of clients stay valid."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING

from workbench.errors import StartError
from workbench.placement.head import run_unrunnable
from workbench.text import count

if TYPE_CHECKING:
    from dask.typing import Key
    from distributed import Scheduler
    from distributed.scheduler import TaskState


def heir(rank: int, size: int, n: int) -> int:
    """Return the one of `n` ranks that replaces a rank of `size` ranks; see `moved`."""
    return rank * n // size if n >= size else ((rank + 1) * n - 1) // size


async def moved(scheduler: Scheduler, size: int, former: Mapping[int, str], ranks: Mapping[int, str]) -> str:
    """Send the results in memory of `former` ranks to `ranks`, to which tasks are pinned from then on.

    Rank j of `size` former ranks is replaced by rank ``j * n // size`` of n ranks; of fewer ranks than before by rank
    ``((j + 1) * n - 1) // size``, which is the inverse. A value of all former ranks reaches all ranks.

    Parameters
    ----------
    scheduler
        The scheduler, in which the former ranks are paused.
    size
        Number of the former ranks, with those that are lost.
    former, ranks
        Addresses of the registered ranks, by rank.

    Returns
    -------
    str
        Words on what is lost, for the end of a sentence: actors stay where they are.

    Raises
    ------
    StartError
        If results could not be sent, or a new rank was lost. The tasks are pinned as before.
    """
    heirs = {address: ranks[heir(rank, size, len(ranks))] for rank, address in former.items()}

    def targets(task: TaskState) -> set[str]:
        pinned = set(task.worker_restrictions or ()) & heirs.keys()
        if len(pinned) == len(heirs) and (len(heirs) > 1 or task.run_spec is None):  # of one rank: data without a task
            return set(ranks.values())
        holders = {holder.address for holder in task.who_has or ()}
        return {heirs[address] for address in pinned or (holders if holders <= heirs.keys() else ())}

    manager = scheduler.extensions["amm"]
    managed = manager.running
    manager.stop()  # it would drop one of two copies
    try:
        wanted: defaultdict[str, dict[Key, list[str]]] = defaultdict(dict)
        held = {task for address in former.values() for task in scheduler.workers[address].has_what}
        for task in held:
            holders = {holder.address for holder in task.who_has or ()}
            for target in set() if task.actor else targets(task) - holders:
                wanted[target][task.key] = sorted(holders)
        await _send(scheduler, wanted, ranks)
        for task in scheduler.tasks.values():
            if task.worker_restrictions and not heirs.keys().isdisjoint(task.worker_restrictions):
                task.worker_restrictions = {*task.worker_restrictions} - heirs.keys() | targets(task)
        run_unrunnable(scheduler, ranks.values())  # tasks that have waited for a paused rank
    finally:
        if managed:
            manager.start()
    actors = sum(len(worker.actors) for address in former.values() if (worker := scheduler.workers.get(address)))
    return f", and {count(actors, 'actor')} of the former ranks {'is' if actors == 1 else 'are'} lost" if actors else ""


async def _send(scheduler: Scheduler, wanted: Mapping[str, dict[Key, list[str]]], ranks: Mapping[int, str]) -> None:
    """Have ranks get results: by address of the rank, the addresses of the holders of each key."""
    failed = await asyncio.gather(*(scheduler.gather_on_worker(*each) for each in wanted.items()))
    if not scheduler.workers.keys() >= set(ranks.values()):
        raise StartError("a new rank was lost while it received results.")
    # A key without a holder was released, or lost with its rank.
    tasks = [scheduler.tasks.get(key) for keys in failed for key in keys]
    if missing := {str(task.key) for task in tasks if task is not None and task.who_has}:
        raise StartError(f"{count(len(missing), 'result')} could not be sent to the new ranks, as {min(missing)}.")
