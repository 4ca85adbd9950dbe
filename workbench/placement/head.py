"""Protection of pinned blocks from the scheduler's memory management.

Dask runs a restricted task on its workers only, but treats the *result* like any other: the active memory manager may
drop the replica on the rank if another rank has a copy, and ``rebalance`` and ``replicate`` move and drop replicas. Two
objects keep the results on their ranks:

- `KeepPinned` replaces the policy ``ReduceReplicas`` in Dask's configuration
  (``distributed.scheduler.active-memory-manager.policies: [{class: workbench.placement.head.KeepPinned}]``);
- `protect_pinned`, called once with the scheduler, wraps the handlers of requests from clients.

A task that is pinned to a lost rank would wait for ever: `fail_unrunnable` makes the task fail.

A rank that retires still hands its values over to other ranks, where they are better kept than lost.
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
    from distributed.scheduler import TaskState, WorkerState

    from workbench.hints import Hint


def is_pinned(task: TaskState) -> bool:
    """Return whether the task may run on certain workers only."""
    return bool(task.worker_restrictions) and not task.loose_restrictions


class KeepPinned(ReduceReplicas):
    """Drop surplus replicas, but not the result of a pinned task on its worker."""

    __slots__ = ()

    def run(self) -> SuggestionGenerator:
        """Restrict each suggestion of Dask's policy to workers that may drop the replica."""
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
    """Let ``client.rebalance`` move, and ``client.replicate`` drop, only values that are not pinned."""
    rebalance, replicate = scheduler.handlers["rebalance"], scheduler.handlers["replicate"]

    def pinned(key: Key) -> bool:
        return key in scheduler.tasks and is_pinned(scheduler.tasks[key])

    @wraps(rebalance)
    async def rebalance_the_others(keys: Iterable[Key] | None = None, **options: Any) -> Any:
        if keys is None:
            # Without keys, a key that was released meanwhile is no failure.
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
    """Drop the copies on other ranks of values that a rank may have changed.

    Parameters
    ----------
    written
        Keys, each with the address of the rank that has the current value.
    stimulus
        Name of the reason, for Dask's logs.

    Notes
    -----
    A rank keeps a copy that a running task needs: the task was submitted before the writing was over.
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
    """Keep tasks of a lost rank away from a new rank with the same address, so that `fail_unrunnable` ends them."""
    for task in scheduler.tasks.values():
        if is_pinned(task) and address in (task.worker_restrictions or ()):
            task.worker_restrictions = {*(task.worker_restrictions or ())} - {address} | {f"{address} (before)"}


def fail_processing(scheduler: Scheduler, worker: WorkerState, message: str, hint: Hint) -> None:
    """Make the tasks that a lost worker has run, or would have run next, fail with `RankLost`."""
    ranks = (worker.extra["workbench"]["rank"],)
    for task in list(worker.processing):
        _fail(scheduler, task, RankLost(f"{task.key!r}: {message}", hint=hint, ranks=ranks))


def fail_unrunnable(scheduler: Scheduler) -> None:
    """Make the tasks that wait for lost ranks fail, with an error that names the ranks.

    Notes
    -----
    A lost worker never returns. Where a new worker has its address, `disown` is called first.
    """
    for task in [task for task in scheduler.unrunnable if is_pinned(task)]:
        ranks = sorted(task.worker_restrictions or ())
        # A restriction may also be the name of a worker that has not started yet.
        if any(rank in scheduler.workers or "://" not in rank for rank in ranks):
            continue
        error = RankLost(
            f"{task.key!r} must run on {' or '.join(ranks)}, and that rank is gone, with its copy of the blocks. "
            "Place the data again: X = place(X)."
        )
        _fail(scheduler, task, error)


def _fail(scheduler: Scheduler, task: TaskState, error: RankLost) -> None:
    stimulus = f"rank-lost-{time.time()}"
    further = scheduler.transition(
        task.key, "erred", exception=pickle.dumps(error), cause=task.key, stimulus_id=stimulus
    )
    scheduler.transitions(further, stimulus_id=stimulus)
