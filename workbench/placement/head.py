"""Protection of pinned blocks from the scheduler's memory management.

Dask runs a restricted task on its workers only, but treats the *result* like any other: the active memory manager may
drop the replica on the rank if another rank has a copy, and ``rebalance`` and ``replicate`` move and drop replicas. Two
objects keep the results on their ranks:

- `KeepPinned` replaces the policy ``ReduceReplicas`` in Dask's configuration
  (``distributed.scheduler.active-memory-manager.policies: [{class: workbench.placement.head.KeepPinned}]``);
- `protect_pinned`, called once with the scheduler, wraps the handlers of requests from clients.

A task that is pinned to a lost rank would wait for ever: `fail_unrunnable` makes the task fail. If the world starts
again without a request, `pin_again` pins the task to the new rank, where Dask makes its result again. `fail_lost`
excludes results that would differ from those before.

A rank that retires still hands its values over to other ranks, where they are better kept than lost.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from distributed.active_memory_manager import ReduceReplicas
from distributed.protocol import pickle

from workbench.errors import RankLost

if TYPE_CHECKING:
    from dask.typing import Key
    from distributed import Scheduler
    from distributed.active_memory_manager import SuggestionGenerator
    from distributed.scheduler import TaskState, WorkerState

    from workbench.hints import Hint


PLACE_AGAIN = "Place the data again: X = place(X)."
"""End of the message about a lost block."""

# Values into whose memory code of the user may have written.
_written: WeakSet[TaskState] = WeakSet()


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


def mark_written(scheduler: Scheduler, keys: Iterable[Key]) -> None:
    """Note that code of the user gets values into whose memory the code may write."""
    _written.update(scheduler.tasks[key] for key in keys if key in scheduler.tasks)


def fail_lost(scheduler: Scheduler, worker: WorkerState, lost: str) -> None:
    """Make the values fail with `RankLost` that only a worker that leaves has, and that no task can make again.

    Parameters
    ----------
    lost
        The loss of the worker, as a sentence without an end.
    """
    stimulus = f"rank-lost-{time.time()}"
    ranks = (worker.extra["workbench"]["rank"],)
    # Again, because tasks cannot be made from those that fail here.
    while failing := [task for task in worker.has_what if len(task.who_has or ()) == 1 and _is_final(task)]:
        for task in failing:
            blamed = next((each.exception_blame for each in task.dependencies if each.state == "erred"), None)
            task.exception_blame = blamed or task
            if blamed is None:
                written = ", and a call or a cell may have changed the value before" if task in _written else ""
                error = RankLost(f"{task.key!r} is gone: {lost}{written}. {PLACE_AGAIN}", ranks=ranks)
                task.exception, task.exception_text = pickle.dumps(error), str(error)
            scheduler.transition(task.key, "released", stimulus_id=stimulus)  # recommends to make the value again
            further = scheduler.transition(task.key, "erred", stimulus_id=stimulus)
            scheduler.transitions(further, stimulus_id=stimulus)


def _is_final(task: TaskState) -> bool:
    """Return whether no task makes the value of a task again as the value was; actors are Dask's."""
    if task.actor:
        return False
    if task.run_spec is None or task.has_lost_dependencies or task in _written:
        return True
    return any(each.state == "erred" or each in _written for each in task.dependencies)


def pin_again(scheduler: Scheduler, heirs: Mapping[str, str]) -> int:
    """Pin the tasks of lost ranks to those that take their places, and run them; return their number.

    Parameters
    ----------
    heirs
        The addresses of the new ranks, by those of the lost ranks.
    """
    heirs = {_before(rank) if rank in scheduler.workers else rank: heir for rank, heir in heirs.items()}
    waiting = 0
    for task in scheduler.tasks.values():
        if lost := heirs.keys() & (task.worker_restrictions or ()):
            task.worker_restrictions = {*(task.worker_restrictions or ())} - lost | {heirs[rank] for rank in lost}
            if task.state in ("waiting", "no-worker"):
                waiting += 1
                # Clients forget the former rank, also of values that were not made before.
                scheduler.report({"op": "lost-data", "key": task.key}, ts=task)
    run_unrunnable(scheduler, heirs.values())
    return waiting


def run_unrunnable(scheduler: Scheduler, addresses: Iterable[str]) -> None:
    """Run the tasks that have waited for certain workers."""
    for address in set(addresses) & scheduler.workers.keys():
        runnable = scheduler.bulk_schedule_unrunnable_after_adding_worker(scheduler.workers[address])
        scheduler.transitions(runnable, stimulus_id="pinned-again")


def disown(scheduler: Scheduler, address: str) -> None:
    """Keep tasks of a lost rank away from a new rank with the same address, so that `fail_unrunnable` ends them."""
    for task in scheduler.tasks.values():
        if is_pinned(task) and address in (task.worker_restrictions or ()):
            task.worker_restrictions = {*(task.worker_restrictions or ())} - {address} | {_before(address)}


def _before(address: str) -> str:
    """Return the name of a lost rank whose address another rank has now."""
    return f"{address} (before)"


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
            f"{PLACE_AGAIN}"
        )
        _fail(scheduler, task, error)


def _fail(scheduler: Scheduler, task: TaskState, error: RankLost) -> None:
    stimulus = f"rank-lost-{time.time()}"
    further = scheduler.transition(
        task.key, "erred", exception=pickle.dumps(error), cause=task.key, stimulus_id=stimulus
    )
    scheduler.transitions(further, stimulus_id=stimulus)
