"""What the scheduler may do with blocks that are pinned to a rank: nothing.

A task that is restricted to certain workers stays there, but Dask treats its *result* as any other: the
active memory manager drops the replica on its rank if another rank holds a copy, and ``rebalance`` and
``replicate`` move and drop as they like. Two things keep results where their tasks belong:

- `KeepPinned`, in place of the policy ``ReduceReplicas``, by Dask's configuration
  (``distributed.scheduler.active-memory-manager.policies: [{class: workbench.placement.head.KeepPinned}]``);
- `guard`, called once with the scheduler, for what clients ask for.

A task that is pinned to a rank that is gone waits for it, as Dask sees it: `fail_unrunnable` ends the wait.

A rank that retires still hands over what it holds: better elsewhere than lost.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from functools import wraps
from typing import TYPE_CHECKING, Any

from distributed.active_memory_manager import ReduceReplicas
from distributed.protocol import pickle

from workbench.errors import RankLost

if TYPE_CHECKING:
    from dask.typing import Key
    from distributed import Scheduler
    from distributed.active_memory_manager import SuggestionGenerator
    from distributed.scheduler import TaskState


def is_pinned(task: TaskState) -> bool:
    """Whether the task has to run on certain workers and may not run on others."""
    return bool(task.worker_restrictions) and not task.loose_restrictions


class KeepPinned(ReduceReplicas):
    """Drop surplus replicas, but never that of a pinned task on its own worker."""

    __slots__ = ()

    def run(self) -> SuggestionGenerator:
        """Narrow each suggestion of Dask's policy down to workers that may drop the replica."""
        suggestions = super().run()
        choice = None
        while True:
            try:
                suggestion = suggestions.send(choice)
            except StopIteration:
                return
            task = suggestion.ts
            if is_pinned(task):
                elsewhere = {
                    worker for worker in task.who_has or () if worker.address not in (task.worker_restrictions or ())
                }
                suggestion = suggestion._replace(candidates=elsewhere)
            choice = yield suggestion


def protect_pinned(scheduler: Scheduler) -> None:
    """Let ``client.rebalance`` move only what is not pinned, and ``client.replicate`` drop only that."""
    rebalance, replicate = scheduler.handlers["rebalance"], scheduler.handlers["replicate"]

    def pinned(key: Key) -> bool:
        return key in scheduler.tasks and is_pinned(scheduler.tasks[key])

    @wraps(rebalance)
    async def rebalance_the_others(keys: Iterable[Key] | None = None, **options: Any) -> Any:
        if keys is None:
            # Without keys, one that is gone meanwhile is no failure.
            movable = [key for key, task in scheduler.tasks.items() if task.who_has and not is_pinned(task)]
            await rebalance(keys=movable, **options)
            return {"status": "OK"}
        return await rebalance(keys=[key for key in keys if not pinned(key)], **options)

    @wraps(replicate)
    async def replicate_and_keep(keys: Iterable[Key], **options: Any) -> Any:
        keys = set(keys)
        kept = {key for key in keys if pinned(key)}
        answers = [
            await replicate(keys=list(some), **{**options, **changed})
            for some, changed in ((kept, {"delete": False}), (keys - kept, {}))
            if some
        ]
        return next((answer for answer in answers if answer), None)

    scheduler.handlers.update(rebalance=rebalance_the_others, replicate=replicate_and_keep)


def drop_copies(scheduler: Scheduler, written: Iterable[tuple[Key, str]], stimulus: str) -> None:
    """Have other ranks let go of their copies of what a rank may have written to.

    Parameters
    ----------
    scheduler
        Knows who has what, so nobody is asked.
    written
        Keys, each with the address of the rank that has the value as it is now.
    stimulus
        Name of the reason, for Dask's logs.

    Notes
    -----
    A rank on which a task needs its copy keeps it for that task, which was submitted before the writing was over.
    """
    copies: defaultdict[str, list[Key]] = defaultdict(list)
    for key, owner in written:
        task = scheduler.tasks.get(key)
        holders = (task and task.who_has) or set()
        if task is None or len(holders) < 2 or scheduler.workers.get(owner) not in holders:
            continue
        kept = {owner, *(task.worker_restrictions or ())}
        for holder in holders - {waiter.processing_on for waiter in task.waiters or ()}:
            if holder.address not in kept:
                copies[holder.address].append(key)
    for address, keys in copies.items():
        scheduler.request_remove_replicas(address, keys, stimulus_id=stimulus)


def disown(scheduler: Scheduler, address: str) -> None:
    """Keep what is pinned to a lost rank from the rank that has its address now: `fail_unrunnable` ends the wait."""
    for task in scheduler.tasks.values():
        if is_pinned(task) and address in (task.worker_restrictions or ()):
            task.worker_restrictions = {*(task.worker_restrictions or ())} - {address} | {f"{address} (before)"}


def fail_unrunnable(scheduler: Scheduler) -> None:
    """Have the tasks fail that wait for ranks which are gone, with a sentence that says so.

    Notes
    -----
    A worker that has gone does not come back. Where another one gets its address, `disown` comes first.
    """
    stimulus = f"rank-lost-{time.time()}"
    for task in [task for task in scheduler.unrunnable if is_pinned(task)]:
        ranks = sorted(task.worker_restrictions or ())
        # A restriction to a name, that of a worker to come, is no address.
        if any(rank in scheduler.workers or "://" not in rank for rank in ranks):
            continue
        error = RankLost(
            f"{task.key!r} has to run on {' or '.join(ranks)}, and that rank is gone with all that lay on it. "
            "Place the data again: X = place(X)"
        )
        further = scheduler.transition(
            task.key, "erred", exception=pickle.dumps(error), cause=task.key, stimulus_id=stimulus
        )
        scheduler.transitions(further, stimulus_id=stimulus)
