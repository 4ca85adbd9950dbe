"""SPMD calls on a rank: the handlers that prepare, run and end a call, and keep the blocks that a call has made."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Unpack

from workbench.collective import broadcast_rank, protocol
from workbench.collective.operation import Cancelled, answering
from workbench.collective.rank_call import SpmdCall
from workbench.errors import CollectiveFailed
from workbench.placement.in_use import take

if TYPE_CHECKING:
    from dask.typing import Key
    from distributed import Worker

    from workbench.metrics.activity import Activity
    from workbench.mpi.communicator_cache import CommunicatorCache
    from workbench.mpi.context import RankContext


# Callbacks that run many times per second, and take the GIL from the code of the user. The heartbeat and the memory
# monitor continue.
_PAUSED = ("tick", "ticks", "monitor", "profile", "profile-cycle")


@contextmanager
def pause_periodic_callbacks(worker: Worker) -> Iterator[None]:
    """Pause these callbacks in the context. On the event loop of the worker."""
    from distributed.metrics import time

    callbacks = map(worker.periodic_callbacks.get, _PAUSED)
    paused = [callback for callback in callbacks if callback and callback.is_running()]
    for callback in paused:
        callback.stop()
    try:
        yield
    finally:
        # Otherwise distributed would log the pause as an unresponsive event loop.
        worker._last_tick = time()  # noqa: SLF001  (there is no public way)
        for callback in paused:
            callback.start()


class SpmdCalls:
    """Handlers of a rank for SPMD calls, on the event loop of the worker.

    The function of the user and MPI run only on the SPMD thread. So neither occupied task slots nor the thread level of
    MPI matter.
    """

    def __init__(
        self, worker: Worker, context: RankContext, communicators: CommunicatorCache, activity: Activity
    ) -> None:
        self._worker, self._context, self._communicators = worker, context, communicators
        self._activity = activity
        self.calls: dict[str, SpmdCall] = {}
        self._ended = Cancelled(protocol.RANK_REMEMBER_S)
        # The last call, if the call has succeeded.
        self._last: SpmdCall | None = None
        worker.handlers[protocol.BROADCAST_UPLOAD] = self.upload
        worker.handlers |= answering(
            {
                protocol.RESERVE: self.reserve,
                protocol.GO: self.go,
                protocol.SETTLE: self.settle,
                protocol.KEEP: self.keep,
            }
        )
        worker.stream_handlers |= {protocol.END: self.end, protocol.ANSWER: self.answer}

    async def reserve(self, **request: Unpack[protocol.Reserve]) -> protocol.Ready:
        """Prepare a call."""
        id, keys, data = request["call"], request["keys"], self._worker.data  # noqa: A001
        if missing := [key for key in keys if key not in data]:
            return {"missing": missing}
        if id in self._ended:
            raise CollectiveFailed("the call was canceled.")
        work = request["work"]
        call = self.calls[id] = SpmdCall(id, work["name"], request["serial"], tuple(request["ranks"]))
        call.watch.compares, call.channel.listener, call.counted = work["compares"], work["listener"], work["counted"]
        call.taken = {key: take(data, key) for key in keys}
        values = [call.taken[key] for key in keys]
        answer = await asyncio.wrap_future(self._context.spmd_thread.submit(call.unpack, work["contents"], values))
        if answer or id in self._ended:
            # No request to run this call will come, with which the call would give its blocks back.
            self.calls.pop(id, None)
        return answer

    async def go(self, **request: Unpack[protocol.Go]) -> protocol.Outcome:
        """Run a prepared call, and return the outcome."""
        call = self.calls.get(request["call"])
        if call is None:
            raise CollectiveFailed("the call was canceled.")
        last, self._last = self._last, None
        running = self._context.spmd_thread.submit(
            call.run, self._communicators, self._activity, last, self._context.rank, request["wanted"]
        )
        try:
            with pause_periodic_callbacks(self._worker):
                outcome = await asyncio.wrap_future(running)
        finally:
            call.put_back(self._worker.data)
            if not call.made or call.id in self._ended:
                self.calls.pop(call.id, None)
                call.take_made()  # `_last` would hold the blocks until the next call
        if "messages" in outcome and call.id not in self._ended:
            self._last = call
        return outcome

    async def upload(self, key: Key, value: Any) -> None:
        """Keep an object before its broadcast."""
        await broadcast_rank.upload(self._worker, key, value)

    async def settle(self, call: str) -> bool:
        """Make the communicator of the last call usable for the next call; return whether this has succeeded."""
        if self._last is None or self._last.id != call:
            return False
        return await asyncio.wrap_future(self._context.spmd_thread.submit(self._last.settle, self._communicators))

    async def keep(self, call: str) -> protocol.Outcome:
        """Keep the blocks that a call has made; return the keys, and the bytes of each block."""
        made = self.calls.pop(call).take_made()
        return {"kept": list(self._worker.update_data(made)["nbytes"].items())}

    def end(self, **request: Unpack[protocol.End]) -> None:
        """End a call in any state. The communicator, if the call has used one, is not used again."""
        id = request["call"]  # noqa: A001
        if request["serial"] is not None:
            self._communicators.discard(request["serial"])
        # The request to prepare this call may arrive later.
        self._ended.add(id)
        if self._last is not None and self._last.id == id:
            # The call has failed on another rank, which does not free its communicators, a collective operation.
            self._last = None
        if call := self.calls.get(id):
            call.end(request["reason"], asyncio.get_running_loop().call_later)
            if not call.running:
                del self.calls[id]
                call.take_made()

    def answer(self, **answer: Unpack[protocol.Answered]) -> None:
        """Pass an answer to the call that waits for it; the call may have ended."""
        if call := self.calls.get(answer["call"]):
            call.channel.take(answer["question"], answer["contents"])

    def where(self) -> dict[str, Any] | None:
        """Return the position of this rank in a call; None outside a call."""
        return next((place for call in self.calls.values() if (place := call.where())), None)
