"""The part of a rank in SPMD calls: get ready, join in, return the outcome, and keep the blocks that were made."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, cast

from workbench.collective import protocol, serialize
from workbench.collective.cancelled import Cancelled
from workbench.collective.quiet import pause_periodic_callbacks
from workbench.collective.rank_call import SpmdCall
from workbench.collective.rank_rpc import answering
from workbench.errors import CollectiveFailed
from workbench.mpi.call_state import CallCancelled
from workbench.placement.in_use import take

if TYPE_CHECKING:
    from dask.typing import Key
    from distributed import Worker
    from mpi4py import MPI

    from workbench.metrics.activity import Activity
    from workbench.mpi.communicator import Communicator
    from workbench.mpi.communicator_cache import CommunicatorCache
    from workbench.mpi.context import RankContext


P = ParamSpec("P")
T = TypeVar("T", protocol.Ready, protocol.Outcome)

# Bytes of a value from which it does not travel within the message, but beside it.
_LARGE = 1 << 20
# Seconds for which calls are remembered that were called off.
_REMEMBER = 600.0


def _as_data(step: Callable[P, T]) -> Callable[P, T]:
    """Have a step with code of the user return its error as data: an event loop would end with `SystemExit`."""

    @functools.wraps(step)
    def outcome(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return step(*args, **kwargs)
        except CallCancelled as error:
            return cast("T", {"ended": str(error)})
        except BaseException as error:  # noqa: BLE001  (whatever it is)
            return cast("T", {"error": serialize.pack_error(error)})

    return outcome


class SpmdCalls:
    """Answers what the head asks a rank for an SPMD call, on the event loop of the worker.

    The function of the user, and MPI, run on the rank's SPMD thread alone. So neither busy task slots nor the thread
    level of MPI matter.
    """

    def __init__(
        self, worker: Worker, context: RankContext, communicators: CommunicatorCache, activity: Activity
    ) -> None:
        self._worker, self._context, self._communicators = worker, context, communicators
        self._activity = activity
        self._calls: dict[str, SpmdCall] = {}
        self._ended = Cancelled(_REMEMBER)
        # Of the last call, if it succeeded on this rank: its identity, the requests that it left, and its communicator.
        self._last: tuple[str, list[MPI.Request], Communicator] | None = None
        worker.handlers |= answering(
            {
                protocol.RESERVE: self.reserve,
                protocol.GO: self.go,
                protocol.SETTLE: self.settle,
                protocol.KEEP: self.keep,
            }
        )
        worker.stream_handlers[protocol.END] = self.end

    async def reserve(self, **request: Unpack[protocol.Reserve]) -> protocol.Ready:
        """Get ready for a call."""
        call, keys = request["call"], request["keys"]
        data = self._worker.data
        if missing := [key for key in keys if key not in data]:
            return {"missing": missing}
        if call in self._ended:
            raise CollectiveFailed("the call was called off")
        ready = self._calls[call] = SpmdCall(call, request["name"], request["serial"], tuple(request["ranks"]))
        ready.taken = {key: take(data, key) for key in keys}
        values = [ready.taken[key] for key in keys]
        unpacking = self._context.spmd_thread.submit(_unpack, ready, request["contents"], values)
        answer = await asyncio.wrap_future(unpacking)
        if answer:
            self._calls.pop(call, None)
        return answer

    async def go(self, **request: Unpack[protocol.Go]) -> protocol.Outcome:
        """Join in; return the outcome, and what was left behind, see `SpmdCall.left_behind`."""
        call, root, limit = request["call"], request["root"], request["limit"]
        ready = self._calls.get(call)
        if ready is None:
            raise CollectiveFailed("the call was called off")
        try:
            with pause_periodic_callbacks(self._worker):
                return await asyncio.wrap_future(self._context.spmd_thread.submit(self._run, ready, root, limit))
        finally:
            ready.put_back(self._worker.data)
            if not ready.made:
                self._calls.pop(call, None)

    async def settle(self, **request: Unpack[protocol.Settle]) -> bool:
        """Make the communicator of the last call, which has succeeded, fit for the next one; return whether it is."""
        settling = self._context.spmd_thread.submit(self._settle, request["call"], request["serial"])
        return await asyncio.wrap_future(settling)

    def _settle(self, call: str, serial: int) -> bool:
        last, self._last = self._last, None
        if last is None or last[0] != call:
            return False
        _, left, comm = last
        settled = self._communicators.settle(serial, call.encode(), left, comm.derived)
        if settled:
            _free(comm)
        return settled

    @_as_data
    def _run(self, ready: SpmdCall, root: bool, limit: int | None) -> protocol.Outcome:
        if self._last is not None:
            # Not before: what is made later may get the context of one that is freed, with the messages left there.
            _free(self._last[2])
            self._last = None
        with self._activity.running(ready.id, ready.name, ready.watch):
            outcome = ready.run(self._communicators, functools.partial(self._outcome, ready, root, limit))
        if ready.comm is not None:
            self._last = ready.id, ready.left, ready.comm
        return {**outcome, **ready.left_behind()}

    def _outcome(self, ready: SpmdCall, root: bool, limit: int | None, value: Any) -> protocol.Outcome:
        """Return the outcome for the value that the function returned; blocks of it are kept for now."""
        number = ready.ranks.index(self._context.rank)
        if ready.to_blocks is None:
            return {} if root and number else _of_value(value, limit)
        ready.made = ready.to_blocks(value, number)
        blocks = [meta for meta, _ in ready.made]
        return {"blocks": serialize.dumps(blocks), "keys": [meta.key for meta in blocks]}

    async def keep(self, call: str) -> list[tuple[Key, int]]:
        """Keep the blocks that were made; return their keys, and how many bytes each has."""
        blocks = {meta.key: block for meta, block in self._calls.pop(call).made}
        return list(self._worker.update_data(blocks)["nbytes"].items())

    def end(self, **request: Unpack[protocol.End]) -> None:
        """Call it off, wherever it is; its communicator, if it has used one, is not used again."""
        call = request["call"]
        if request["serial"] is not None:
            self._communicators.abandon(request["serial"])
        # The request to get ready for it may be under way, or may even come later.
        self._ended.add(call)
        if ready := self._calls.get(call):
            ready.end(request["reason"], asyncio.get_running_loop().call_later)
            if not ready.running:
                del self._calls[call]

    def where(self) -> dict[str, Any] | None:
        """Return where this rank is in a call; None if it is in none."""
        return next((place for ready in self._calls.values() if (place := ready.where())), None)


def _free(comm: Communicator) -> None:
    """Free what a call has made of its communicator; collective."""
    from mpi4py import MPI

    with contextlib.suppress(MPI.Exception):
        comm.free_derived()


@_as_data
def _unpack(ready: SpmdCall, contents: bytes, values: Sequence[Any]) -> protocol.Ready:
    ready.unpack(contents, values)
    return {}


def _of_value(value: Any, limit: int | None) -> protocol.Outcome:
    """Return the number of bytes of a value, and the value itself unless these are too many."""
    from distributed.protocol.serialize import to_serialize

    try:
        contents = serialize.dumps(value)
    except Exception as error:
        error.add_note("What was returned cannot be sent to the notebook.")
        raise
    nbytes = len(contents)
    if limit is not None and nbytes > limit:
        return {"nbytes": nbytes}
    # As frames of its own: the others of a message are copied together, and have 4 GiB at most.
    return {"nbytes": nbytes, "value": contents if nbytes <= _LARGE else to_serialize(contents)}
