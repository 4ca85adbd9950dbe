"""SPMD calls on the head: the ranks of a call, the turn of a call on each rank, and the end of a call by the client."""

from __future__ import annotations

import asyncio
import functools
import math
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from dask.utils import format_bytes

from workbench import positions
from workbench.cancellation import run_to_end
from workbench.collective import protocol
from workbench.collective.operation import (
    BLOCKED,
    NOT_LOST,
    WHERE_HINT,
    CallQueue,
    Cancelled,
    Outcomes,
    RankRPC,
    Turn,
    gather_or_cancel,
    leaves,
    poll_until,
    prepare,
    require_complete,
    root_cause,
    send_limit,
)
from workbench.errors import CollectiveFailed, CollectiveTimeout, InvalidRequest, RankLost, WorkbenchError
from workbench.mpi.counters import KEYS
from workbench.placement.head import drop_copies, mark_written
from workbench.positions import ranges

if TYPE_CHECKING:
    from dask.typing import Key
    from distributed import Scheduler

    from workbench.deploy.world import CurrentWorld, MPIWorld


# Failures of other ranks in the message, at most.
_FURTHER = 4
# Seconds for a rank to report its position.
_WHERE = 2.0
# Seconds for the scheduler to notice a loss that MPI has reported.
_LOSS = 30.0


class CollectiveCall:
    """A call on the ranks `members`, by the message `request` of a client."""

    def __init__(
        self,
        scheduler: Scheduler,
        queue: CallQueue,
        members: RankRPC,
        request: protocol.Call,
        *,
        deadline: float,
    ) -> None:
        self._scheduler, self._queue, self.members = scheduler, queue, members
        self._request, self._deadline = request, deadline
        self._call, self._name, self._client = request["call"], request["work"]["name"], request["client"]
        self.world: MPIWorld  # of the turn, like the number
        self._serial: int
        """Number of the communicator; the call before may retire one, so this call asks in its turn."""
        self._stop: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._keys: dict[int, Sequence[Key]] = {}  # of the arguments, by rank
        self._made: list[Key] = []  # blocks that are held for the client
        self._missing: set[int] = set()  # ranks that were lost before the call
        self._stragglers = ""  # a blank and a sentence about ranks that have not returned, or nothing

    async def run(self, world: MPIWorld) -> protocol.Answer:
        """Prepare all ranks of the call, run the call on them, and return the answer to the client."""
        self.world = world
        self._serial = self._queue.communicator(self.world, list(self.members.ranks))
        self._missing = set(self.world.missing())
        if (seconds := self._request["turn_timeout"]) is not None:
            self._deadline = min(self._deadline, asyncio.get_running_loop().time() + seconds)
        off = functools.partial(self._end, "the head has canceled the call", begun=False)
        answer = await prepare(self._reserve_all(), self._deadline, off, lambda: self._late("had not begun"))
        try:
            answer = answer or await run_to_end(self._run_all(), self._stop)
        except asyncio.CancelledError:
            if self._made and self._client in self._scheduler.clients:
                # The client never gets the names of these blocks.
                self._scheduler.client_releases_keys(keys=self._made, client=self._client)
            raise
        return {**answer, "addresses": list(self.members.ranks.values())}

    async def _reserve_all(self) -> protocol.Answer:
        """Prepare all ranks; return the answer to the client if a rank cannot run the call, else an empty answer."""
        ranks = self.members.ranks
        self._keys = keys_by_rank(self._name, self._request["keys"], ranks)
        contents = self._request["work"]["contents"]
        admitted = send_limit(0 if contents is None else len(contents))
        answers = await gather_or_cancel(self._reserve(rank, admitted) for rank in ranks)
        for rank, answer in zip(ranks, answers, strict=True):
            if "error" in answer:
                self._end("the head has canceled the call", begun=False)
                return {"error": answer["error"], "rank": rank, "others": ""}
        return {}

    async def _reserve(self, rank: int, admitted: asyncio.Semaphore) -> protocol.Ready:
        request: protocol.Reserve = {
            "call": self._call,
            "work": self._request["work"],
            "serial": self._serial,
            "ranks": list(self.members.ranks),
            "keys": self._keys[rank],
        }
        async with admitted:
            answer: protocol.Ready = await self.members.ask(rank, protocol.RESERVE, **request)
        if missing := answer.get("missing"):
            tasks = [self._scheduler.tasks.get(key) for key in missing]
            holders = {task.key: [worker.address for worker in task.who_has or ()] for task in tasks if task}
            lost = [key for key in missing if not holders.get(key)]
            if lost or await self._scheduler.gather_on_worker(self.members.ranks[rank], holders):
                raise CollectiveFailed(_gone(lost or missing, self._name))
            async with admitted:
                answer = await self.members.ask(rank, protocol.RESERVE, **request)
            if "missing" in answer:  # again: the value was released
                raise CollectiveFailed(_gone(answer["missing"], self._name))
        if "ended" in answer:
            raise CollectiveFailed(f"{self._name} was canceled: {answer['ended']}.")
        return answer

    async def _run_all(self) -> protocol.Answer:
        """Run the call, and end the call when one rank fails."""
        mark_written(self._scheduler, (key for key, _ in self._written()))
        message: protocol.Go = {"call": self._call, "wanted": self._request["wanted"]}
        outcomes = self._outcomes(protocol.GO, **message)
        try:
            if await outcomes.wait(self._left, self._stop):
                answer = await self._finish([future.result() for future in outcomes.futures.values()])
            else:
                answer = await self._break_off(outcomes)
            return {**answer, **_events_and_output(outcomes)}
        finally:
            drop_copies(self._scheduler, self._written(), f"spmd-{self._call}")

    def _outcomes(self, operation: str, **message: Any) -> Outcomes[protocol.Outcome]:
        """Ask all ranks at the same time."""
        asked = {
            rank: asyncio.ensure_future(self.members.ask(rank, operation, **message)) for rank in self.members.ranks
        }
        return Outcomes(asked, lambda outcome: "error" in outcome or "ended" in outcome)

    def _written(self) -> list[tuple[Key, str]]:
        """Return the keys of blocks that only one rank got, with the address; several ranks write to copies."""
        owners: dict[Key, str | None] = {}
        if self._request["addresses"] is None or not self._request["writes"]:
            return []  # values of futures, not blocks: other calls use the copies on other ranks
        for rank, keys in self._keys.items():
            address = self.members.ranks[rank]
            for key in keys:
                owners[key] = address if owners.get(key, address) == address else None
        return [(key, owner) for key, owner in owners.items() if owner is not None]

    async def _settle(self) -> None:
        """Have the ranks receive the messages left on the communicator; if that fails, retire the communicator."""
        try:
            settled = await gather_or_cancel(
                self.members.ask(rank, protocol.SETTLE, protocol.CALL_END_S, call=self._call)
                for rank in self.members.ranks
            )
        except (CollectiveFailed, RankLost):
            settled = [False]
        if not all(settled):
            self._retire()

    async def _finish(self, outcomes: list[protocol.Outcome]) -> protocol.Answer:
        if sum(outcome["messages"] for outcome in outcomes) & KEYS or any(outcome["pending"] for outcome in outcomes):
            # The next call would receive messages of this call.
            await self._settle()
        limit = self._request["wanted"]["limit"]
        if "blocks" not in outcomes[0]:
            values = [outcome["value"] for outcome in outcomes if "value" in outcome]
            total = sum(outcome.get("nbytes", 0) for outcome in outcomes)
            if limit is not None and total > limit:
                raise CollectiveFailed(
                    f"{self._name} returned {format_bytes(total)}, more than the limit of {format_bytes(limit)} (the "
                    "setting workbench.spmd.result-limit). Return less, keep the results on the ranks with "
                    f'result="blocks", or raise the limit with limit="{format_bytes(2 * total)}".',
                    option="limit",
                )
            return {"values": values}
        keys = [key for outcome in outcomes for key in outcome["keys"]]
        keeping = self._outcomes(protocol.KEEP, call=self._call)
        self._deadline = max(self._deadline, asyncio.get_running_loop().time() + protocol.CALL_END_S)
        try:
            if not await keeping.wait(self._left, self._stop):
                return await self._break_off(keeping)
            if self._stop.done() or self._client not in self._scheduler.clients:
                raise CollectiveFailed("the client of the SPMD call has disconnected.")  # noqa: TRY301  (for both ends)
        except BaseException:
            # In this order: first no rank keeps further blocks, then the ranks free the kept blocks.
            self._retire()
            self._end("the head has canceled the call", begun=True)
            self.members.tell("free-keys", keys=keys, stimulus_id=f"spmd-{self._call}")
            raise
        for rank, address in self.members.ranks.items():
            for key, nbytes in keeping.futures[rank].result()["kept"]:
                self._scheduler.update_data(who_has={key: [address]}, nbytes={key: nbytes}, client=self._client)
                task = self._scheduler.tasks[key]
                # Pinned to the rank, like every block; an object of a broadcast to all ranks.
                task.worker_restrictions = {*(task.worker_restrictions or ()), address}
                self._made.append(key)
        return {"blocks": [outcome["blocks"] for outcome in outcomes], "keys": keys}

    async def _break_off(self, outcomes: Outcomes[protocol.Outcome]) -> protocol.Answer:
        """End the call; return the error of the rank that failed first, or raise another reason."""
        self._retire()
        cancelled = "the call was canceled" if self._stop.done() else None
        await outcomes.break_off(functools.partial(self._end, begun=True), cancelled, protocol.CALL_END_S)
        lost = await self._loss(outcomes)
        await self._block_stragglers(outcomes)
        futures = {rank: outcomes.futures[rank] for rank in outcomes.order}
        refused = lost or root_cause(future.exception() for future in futures.values())
        answered = {rank: future.result() for rank, future in futures.items() if not future.exception()}
        failed = {rank: answer["error"] for rank, answer in answered.items() if "error" in answer}
        if refused and (not failed or isinstance(refused, RankLost)):
            ranks = {"ranks": refused.ranks} if isinstance(refused, WorkbenchError) else {}
            raise type(refused)(f"{str(refused).rstrip('.')}.{self._stragglers}", **ranks) from refused
        if not failed:
            if self._stop.done():
                raise CollectiveFailed(self.was_cancelled())
            raise self._late("was ended")
        first = next(iter(failed.values()))["words"]
        alike = sorted(rank for rank, error in failed.items() if error["words"] == first)
        others = [f"ranks {positions.ranges(alike)} failed with this error"] if len(alike) > 1 else []
        further = {rank: error["words"] for rank, error in failed.items() if rank not in alike}
        others += [f"rank {rank} failed with {words[:200]}" for rank, words in list(further.items())[:_FURTHER]]
        return {
            "error": failed[alike[0]],
            "rank": alike[0],
            "others": ("; ".join(others) + "." * bool(others) + self._stragglers).strip(),
        }

    async def _loss(self, outcomes: Outcomes[protocol.Outcome]) -> RankLost | None:
        """Return the loss of a rank that MPI has reported to other ranks, earlier than the scheduler knows."""
        answers = [future.result() for future in outcomes.futures.values() if future.done() and not future.exception()]
        reported = any("error" in answer and answer["error"]["process_failed"] for answer in answers)
        if not reported or len(answers) == len(outcomes.futures):
            return None
        # Also the loss of a rank that is not in the call ends the wait.
        await poll_until(lambda: self._stop.done() or not self._missing.issuperset(self.world.missing()), _LOSS)
        lost = set(self.world.missing()) - self._missing
        return next((self.members.lost(rank) for rank in self.members.ranks if rank in lost), None)

    async def _block_stragglers(self, outcomes: Outcomes[protocol.Outcome]) -> None:
        """Block further calls until all ranks have returned."""
        members = {rank: self.members.ranks[rank] for rank in outcomes.running}
        places = await whereabouts(self._scheduler, members, protocol.WHERE_STUCK_S)
        # Ranks that have left the call are about to answer; an import and an operation of a `Communicator` end soon.
        returning = [
            outcomes.futures[rank]
            for rank, place in places.items()
            if place is None or place.get("importing") or place.get("operation")
        ]
        if returning:
            await asyncio.wait(returning, timeout=protocol.RETURN_S)
        if stuck := outcomes.running:
            places = {rank: places.get(rank) for rank in stuck}
            reason = f"{positions.describe(places)}, and cannot be interrupted"
            self._queue.block_until_back(self.world, stuck, f"{self._name} was ended, but {reason}")
            self._stragglers = f" But {reason}. {BLOCKED}"

    def was_cancelled(self) -> str:
        """Return the message about a canceled call, with the ranks that have not returned."""
        return f"{self._name} was canceled.{self._stragglers}"

    def _late(self, how: str) -> CollectiveTimeout:
        return CollectiveTimeout(
            f"{self._name} did not end in time on the ranks, and {how}.{self._stragglers} "
            "Allow more time with timeout=."
        )

    def _left(self) -> float:
        """Return the seconds until the deadline."""
        return max(0.0, self._deadline - asyncio.get_running_loop().time())

    def _retire(self) -> None:
        """Have the next call get a fresh communicator, since messages may be left on this one."""
        self._queue.retire_communicator(self.world, self._serial)

    def _end(self, reason: str, *, begun: bool) -> None:
        message: protocol.End = {"call": self._call, "serial": self._serial if begun else None, "reason": reason}
        self.members.tell(protocol.END, **message)


def keys_by_rank(name: str, keys: Sequence[Sequence[Key]], ranks: Iterable[int]) -> dict[int, Sequence[Key]]:
    """Return the keys of the arguments of each rank: without blocks all ranks get the same."""
    ranks = list(ranks)
    if len(keys) not in (1, len(ranks)):
        raise InvalidRequest(
            f"{name} has {len(keys)} blocks for {len(ranks)} ranks, and needs one block for each rank. Place the data "
            "again: X = place(X).",
            given=len(keys),
        )
    return dict(zip(ranks, keys if len(keys) == len(ranks) else [keys[0]] * len(ranks), strict=True))


def _events_and_output(outcomes: Outcomes[protocol.Outcome]) -> protocol.Answer:
    """Return the number of the events and the output of the ranks for the client."""
    ended = {
        rank: future.result()
        for rank, future in outcomes.futures.items()
        if rank in outcomes.order and not future.exception()
    }
    answer: protocol.Answer = {}
    if printed := [(rank, *outcome["printed"]) for rank, outcome in ended.items() if "printed" in outcome]:
        answer["printed"] = printed
    if events := sum(outcome.get("events", 0) for outcome in ended.values()):
        answer["events"] = events
    return answer


def _gone(keys: Sequence[Key], name: str) -> str:
    return (
        f"{keys[0]!r}, an argument of {name}, is no longer on any rank. Place the data again, X = place(X), or "
        "broadcast the object again."
    )


async def whereabouts(
    scheduler: Scheduler, members: dict[int, str], timeout: float = _WHERE, *, tasks: bool = False
) -> dict[int, dict[str, Any] | None]:
    """Return the positions of ranks, as `workbench.call_stack` reports; None for an idle rank.

    Calls and cells have a position, with `tasks` also Dask tasks. For a rank that does not answer within `timeout`
    seconds, or is gone, the position is ``{"silent": True}``.
    """
    ranks = RankRPC(scheduler, members, "a query of its position")

    async def locate(rank: int) -> dict[str, Any] | None:
        try:
            place: dict[str, Any] | None = await ranks.ask(rank, protocol.WHERE, timeout, tasks=tasks)
        except RuntimeError:
            return {"silent": True}
        return place

    return dict(zip(members, await asyncio.gather(*map(locate, members)), strict=True))


class SpmdCalls:
    """Handlers of the head for SPMD calls."""

    def __init__(
        self,
        scheduler: Scheduler,
        current: CurrentWorld,
        queue: CallQueue,
        began: Callable[[str, int | None], None],
        got_on: Callable[[int, Collection[int]], float],
    ) -> None:
        self._scheduler, self._current, self.queue = scheduler, current, queue
        # Called with the identity of each call, and the number of the notebook's cell that has made the call.
        self._began = began
        # Returns the last time when one of some ranks of a world has entered or left an operation of MPI, if that is
        # known, in seconds since the epoch.
        self._got_on = got_on
        # Calls that wait for their turn, or have their turn.
        self.operations: dict[str, tuple[Turn, CollectiveCall]] = {}
        # Calls that have their turn, by identity: the name, the index of the world, and the ranks.
        self._running: dict[str, tuple[str, int, dict[int, str]]] = {}
        self._made: dict[str, list[Key]] = {}
        self._cancelled = Cancelled(protocol.REMEMBER_S)
        self.handlers: dict[str, Callable[..., Coroutine[Any, Any, Any]]] = {
            protocol.CALL: self.call,
            protocol.RUNNING: self.running,
            protocol.WHERE: self.where,
        }
        self.stream_handlers: dict[str, Callable[..., None]] = {
            protocol.CANCEL: self.cancel,
            protocol.EVENT: self.event,
            protocol.ANSWER: self.answer,
        }

    async def call(self, **request: Unpack[protocol.Call]) -> protocol.Answer:
        """Run a call on all its ranks, and return the answer to the client."""
        call, name = request["call"], request["work"]["name"]
        if call in self._cancelled:
            raise CollectiveFailed(f"{name} was canceled.")
        if request["work"]["counted"]:
            self._began(call, request["origin"])
        timeout = request["timeout"]
        deadline = math.inf if timeout is None else asyncio.get_running_loop().time() + timeout
        needed = self._needed(request)
        operation = self._operation(request, deadline)
        turn = self.queue.turn(request["client"], deadline, ranks=needed)
        self.operations[call] = turn, operation
        try:
            async with turn.held():
                answer = await self._run(request, operation, needed)
        finally:
            del self.operations[call]
        if "blocks" in answer:
            self._made[call] = answer.pop("keys")
            asyncio.get_running_loop().call_later(protocol.REMEMBER_S, self._made.pop, call, None)
        return answer

    async def in_turn(self, request: protocol.Call) -> protocol.Answer:
        """Run a call of the head, which has the turn on all ranks."""
        return await self._run(request, self._operation(request, math.inf), self._needed(request))

    def _operation(self, request: protocol.Call, deadline: float) -> CollectiveCall:
        members = RankRPC(self._scheduler, self._members(request), f"the call {request['work']['name']}")
        return CollectiveCall(self._scheduler, self.queue, members, request, deadline=deadline)

    def _needed(self, request: protocol.Call) -> list[int] | None:
        """Return the ranks of a call; None: all."""
        return request["ranks"] or (None if request["addresses"] is None else [*self._members(request)])

    async def _run(
        self, request: protocol.Call, operation: CollectiveCall, needed: Collection[int] | None
    ) -> protocol.Answer:
        """Run a call in its turn, on the world of the turn: another one may have replaced that before the wait."""
        world = self._current.world
        require_complete(world, needed)
        operation.members.ranks = self._members(request)
        self._running[request["call"]] = request["work"]["name"], world.index, operation.members.ranks
        try:
            return await operation.run(world)
        finally:
            del self._running[request["call"]]

    def _members(self, request: protocol.Call) -> dict[int, str]:
        """Return the addresses of the ranks of a call, by rank, without ranks that are gone."""
        present, addresses, asked = self._current.members(), request["addresses"], request["ranks"]
        if addresses is None:
            if asked is None:
                return present
            size = self._current.world.ranks
            if unknown := [rank for rank in asked if rank >= size]:
                allowed = f"ranks {ranges(range(size))}: the cluster has no rank {unknown[0]}"
                raise InvalidRequest(option="ranks", given=list(asked), allowed=allowed)
            return {rank: present[rank] for rank in asked if rank in present}
        ranks = {address: rank for rank, address in present.items()}
        if gone := [number for number, address in enumerate(addresses) if address not in ranks]:
            raise RankLost(
                f"block {gone[0]} of {len(addresses)} was on {addresses[gone[0]]}, and that rank was lost. Place the "
                "data again: X = place(X)."
            )
        holders = {ranks[address]: address for address in addresses}
        if asked is not None and set(asked) != set(holders):
            raise InvalidRequest(
                f"ranks={list(asked)} is not valid, because the blocks are on "
                f"{'rank' if len(holders) == 1 else 'ranks'} {ranges(holders)}. Omit ranks=, or pass "
                "broadcast(client, X), which copies X to each rank.",
                option="ranks",
                given=list(asked),
            )
        return holders

    def cancel(self, call: str, client: str) -> None:
        """End a call in any state, for its client."""
        if running := self.operations.get(call):
            turn, operation = running
            turn.cancel(operation.was_cancelled)
        elif made := self._made.pop(call, None):
            self._scheduler.client_releases_keys(keys=made, client=client)
        else:
            # This request uses another connection than the call, and may arrive earlier.
            self._cancelled.add(call)

    def event(self, worker: str, **event: Unpack[protocol.Event]) -> None:
        """Forward an event of a rank to the client of the call, as an event of Dask that no other client receives."""
        message = {"op": "event", "topic": protocol.EVENT, "event": (worker, event)}
        self._scheduler.client_send(event["listener"], message)

    def answer(self, client: str, **answer: Unpack[protocol.Answered]) -> None:
        """Forward an answer to the rank that waits; a rank that was lost gets none."""
        if answer["address"] in self._scheduler.stream_comms:
            self._scheduler.worker_send(answer["address"], {"op": protocol.ANSWER, **answer})

    async def running(self, call: str, patience: float) -> dict[str, tuple[str, dict[int, Any]]]:
        """Return by identity the name of each call that has its turn, and the positions of the ranks of `call`.

        The head asks the ranks of `call` if they have made no progress for `patience` seconds. The head does not ask
        the ranks of other calls, since each client that waits would then ask all ranks.
        """
        running = {}
        for current, (name, world, ranks) in list(self._running.items()):
            places: dict[int, Any] = {}
            if current == call and time.time() - self._got_on(world, ranks) >= patience:
                reports = await whereabouts(self._scheduler, ranks)
                places = {rank: place for rank, place in reports.items() if place and place.get("call", call) == call}
            running[current] = name, places
        return running

    async def where(self) -> dict[int, Any]:
        """Return the position of each rank; see `whereabouts`.

        A rank that does not answer counts as in the call that has its turn on this rank.
        """
        places = await whereabouts(self._scheduler, self._current.members(), tasks=True)
        for call, (name, _, ranks) in list(self._running.items()):
            for rank, place in places.items():
                if rank in ranks and place and "silent" in place:
                    place.update(call=call, name=name)
        return places


class Uploads:
    """Handlers of the head for the upload of an object, before the call that sends the object to all ranks."""

    def __init__(self, scheduler: Scheduler, current: CurrentWorld) -> None:
        self._scheduler, self._current = scheduler, current
        self.handlers: dict[str, Callable[..., Coroutine[Any, Any, Any]]] = {
            protocol.BROADCAST_BEGIN: self.begin,
            protocol.BROADCAST_UPLOAD: self.upload,
            protocol.BROADCAST_UPLOADED: self.uploaded,
        }

    async def begin(self, key: Key, client: str) -> list[str]:
        """Note that a client wants `key`, before the upload; return the addresses of the ranks, in their order."""
        require_complete(self._current.world)
        # Before the upload: when the client disconnects, also during the upload, the scheduler forgets the key.
        self._scheduler.new_task(key, None, "released")
        self._scheduler.client_desires_keys(keys=[key], client=client)
        addresses = list(self._current.members().values())
        # No policy drops the first replicas.
        self._scheduler.tasks[key].worker_restrictions = set(addresses)
        return addresses

    async def upload(self, key: Key, value: Any, root: str) -> None:
        """Forward an upload to rank 0, for a client that cannot connect to rank 0."""
        try:
            if root not in self._scheduler.workers:  # a connection would be tried for a long time
                raise ConnectionError(f"{root} has left")
            await getattr(self._scheduler.rpc(root), protocol.BROADCAST_UPLOAD)(key=key, value=value)
        except OSError as error:
            if await leaves(self._scheduler, root):
                raise RankLost(protocol.UPLOAD_LOST) from error
            raise CollectiveFailed(
                f"rank 0 could not be reached for a broadcast ({error}). {NOT_LOST}", hint=WHERE_HINT
            ) from error

    async def uploaded(self, key: Key, address: str, nbytes: int) -> None:
        """Note that rank 0 has the object."""
        if key in self._scheduler.tasks:
            self._scheduler.update_data(who_has={key: [address]}, nbytes={key: nbytes})
        else:  # no client wants the key now: the scheduler has the rank drop it
            self._scheduler.add_keys(worker=address, keys=[key])
