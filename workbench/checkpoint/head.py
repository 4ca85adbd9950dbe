"""Checkpoints on the head: the calls of a save, and what the cluster keeps without its notebooks."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
import uuid
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from workbench.cancellation import run_to_end
from workbench.checkpoint.protocol import CHECKPOINT, KEEP, KEPT_BY_CALLS, KEPT_VERSIONS, STOP_SOON
from workbench.collective.operation import RankRPC
from workbench.collective.serialize import own_call
from workbench.errors import WorkbenchError

if TYPE_CHECKING:
    from dask.typing import Key
    from distributed import Scheduler

    from workbench.collective.head import SpmdCalls
    from workbench.collective.protocol import Answer, Call
    from workbench.deploy.record import Record
    from workbench.deploy.world import CurrentWorld

KEEPER = "workbench-kept"
"""The client that holds the blocks of what the cluster keeps."""
# Seconds for the calls that run at the end to return by themselves, as a part of the time for the last save.
_SHARE = 0.5
# Seconds for the last save if its duration is not known, and more seconds if that is known.
_LAST_SAVE = 30.0
# Seconds to remove the folder of a version that has failed.
_DISCARD = 3.0


class Checkpoints:
    """Handlers of the head for checkpoints, and the values that the cluster keeps.

    Parameters
    ----------
    scheduler, current, calls
        Those of the head.
    record
        The record of the cluster, whose `every` is the interval of saves.
    report
        Called with a message about a save without a client that has failed.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        current: CurrentWorld,
        calls: SpmdCalls,
        record: Record,
        report: Callable[[str], None],
    ) -> None:
        self._scheduler, self._current, self._calls = scheduler, current, calls
        self._name, self._every, self._report = record.name, record.every, report
        # The calls that write what notebooks keep, by name.
        self._kept: dict[str, Call] = {}
        self._dropped: set[str] = set()
        self._lost: set[str] = set()  # reported
        self._by_calls = False
        self._changing = asyncio.Lock()
        self.changed = False
        """Whether a call or a cell has begun since the last save."""
        self.seconds = 0.0
        """Seconds for the last save before the end of the job."""
        self.handlers: dict[str, Callable[..., Coroutine[Any, Any, Any]]] = {
            CHECKPOINT: self.checkpoint,
            KEEP: self.keep,
        }
        self.stream_handlers: dict[str, Callable[..., None]] = {KEPT_BY_CALLS: self._kept_by_calls}

    def _kept_by_calls(self, worker: str) -> None:
        self._by_calls = self.changed = True
        self.seconds = self.seconds or _LAST_SAVE

    # -- requests of clients -----------------------------------------------------------------------------------

    async def checkpoint(self, client: str, path: str, keep: int, calls: Sequence[Call]) -> Answer:
        """Write a version with what the calls write; return the answer of its commit, or of the call that failed."""
        return await self._save(client, path, keep, calls)

    async def keep(self, client: str, named: Mapping[str, Call | None], save: bool) -> Answer:
        """Keep what the calls write (None: keep it no longer); with `save` write a version with all that is kept."""
        async with self._changing:
            before = self._kept, self._dropped
            self._kept = {name: call for name, call in {**self._kept, **named}.items() if call is not None}
            self._dropped = (self._dropped | named.keys()) - self._kept.keys()
            try:
                answer: Answer = await self._save_kept(client, named) if save else {}
            except BaseException:
                self._kept, self._dropped = before
                raise
            if "error" in answer:
                self._kept, self._dropped = before
                return answer
            held, needed = _keys(before[0]), _keys(self._kept)
            self._scheduler.client_desires_keys(keys=list(needed - held), client=KEEPER)
            self._scheduler.client_releases_keys(keys=list(held - needed), client=KEEPER)
            return answer

    # -- saves -------------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Save what is kept at each interval."""
        while True:
            await asyncio.sleep(self._every)
            await self.save_changes()

    async def save_changes(self) -> None:
        """Save what is kept, if a call or a cell may have changed it since the last save; report an error."""
        if not (self._kept or self._by_calls):
            return
        reason = ""
        async with self._changing:
            # A world that is lost has nothing to save.
            if not self.changed or not self._current.world.ready:
                return
            try:
                answer = await self._save_kept(f"{KEEPER}-{uuid.uuid4().hex}")
            except Exception as error:  # noqa: BLE001  (the head continues, or ends in order)
                reason = str(error) or type(error).__name__
            else:
                if "error" in answer:
                    reason = answer["error"]["words"]
        if reason:
            self._report(f"{', '.join(self._kept) or 'what calls keep'} could not be saved: {reason}")

    def stop_calls_soon(self) -> None:
        """Have running calls keep their values now, and ask them to return."""
        RankRPC(self._scheduler, self._current.members(), "the end of the cluster").tell(STOP_SOON)

    async def save_last(self, seconds: float) -> None:
        """Save what is kept for the last time, in so many seconds; running calls are ended after a part of them."""
        if not (self._kept or self._by_calls) or not self._current.world.ready:
            return
        self.stop_calls_soon()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(seconds * _SHARE):
                        await self._calls.queue.wait_idle()
                for turn, operation in list(self._calls.operations.values()):
                    turn.cancel(operation.was_cancelled)
                await self.save_changes()

    async def _save_kept(self, client: str, named: Collection[str] = ()) -> Answer:
        """Write a version with all that is kept; what is lost, apart from `named`, is as in the version before."""
        began = time.monotonic()
        self.changed = False
        present = {name: call for name, call in self._kept.items() if self._is_present(call) or name in named}
        if lost := [name for name in self._kept if name not in present and name not in self._lost]:
            self._report(
                f"{', '.join(lost)}: the data are lost, or on fewer ranks than before. The checkpoint has them as they "
                "were saved; place and keep them again"
            )
        self._lost = self._kept.keys() - present.keys()
        writes = [self._of_blocks(call) for call in present.values()]
        names, dropped = list(self._kept), list(self._dropped)
        writes.append(_own_call(client, "write_kept", names, dropped))
        saved = False
        try:
            answer = await self._save(client, "", KEPT_VERSIONS, writes)
            saved = "error" not in answer
        finally:
            self.changed = self.changed or not saved
        if saved:
            self._dropped.difference_update(dropped)  # a call may keep the name from now on
            self.seconds = 2 * (time.monotonic() - began) + _LAST_SAVE
        return answer

    def _is_present(self, call: Call) -> bool:
        tasks = [self._scheduler.tasks.get(key) for key in _keys({"": call})]
        if not all(task is not None and task.who_has for task in tasks):
            return False
        # After a move to fewer ranks, which another process has requested, ranks have several blocks.
        addresses = self._of_blocks(call)["addresses"] or ()
        return len(set(addresses)) == len(addresses)

    def _of_blocks(self, call: Call) -> Call:
        """Return a call with the present addresses of its blocks, which a move has changed."""
        if call["addresses"] is None:
            return call
        tasks = [self._scheduler.tasks.get(keys[0]) for keys in call["keys"]]
        places = [task and task.worker_restrictions and next(iter(task.worker_restrictions)) for task in tasks]
        return {**call, "addresses": [place or "" for place in places]}

    async def _save(self, client: str, path: str, keep: int, writes: Sequence[Call]) -> Answer:
        """Write a version in one turn; an empty path is that of what the cluster keeps."""
        async with self._calls.queue.turn(client, math.inf).held():
            answer = await self._run(_own_call(client, "begin", path))
            if "error" in answer:
                return answer
            try:
                for call in (*writes, _own_call(client, "commit", path, keep, self._name)):
                    answer = await self._run(call)
                    if "error" in answer:
                        break
                else:
                    return answer
            except BaseException:
                await run_to_end(self._discard(client, path))
                raise
            await self._discard(client, path)
            return answer

    async def _discard(self, client: str, path: str) -> None:
        # The error says more than one of the removal, and a later save removes the folder too.
        with contextlib.suppress(WorkbenchError, TimeoutError):
            async with asyncio.timeout(_DISCARD):
                await self._run(_own_call(client, "discard", path))

    async def _run(self, call: Call) -> Answer:
        return await self._calls.in_turn({**call, "call": uuid.uuid4().hex})


def _keys(kept: Mapping[str, Call]) -> set[Key]:
    return {key for call in kept.values() for keys in call["keys"] for key in keys}


def _own_call(client: str, function: str, *args: Any) -> Call:
    return own_call(client, "checkpoint", _on_ranks, function, *args)


def _on_ranks(comm: Any, function: str, *args: Any) -> Any:
    """Call a function of `workbench.checkpoint.save`, which the head need not import."""
    from workbench.checkpoint import save

    return getattr(save, function)(comm, *args)
