"""One SPMD call, when it is its turn: all ranks get ready, all run, and all end when one of them fails."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dask.utils import format_bytes

from workbench.collective import protocol, rank_locations
from workbench.collective.protocol import part
from workbench.collective.queue import CallQueue
from workbench.collective.rank_rpc import RankRPC, gather_or_cancel, room, root_cause
from workbench.errors import CollectiveFailed, CollectiveTimeout, InvalidRequest, RankLost
from workbench.mpi.counters import KEYS
from workbench.placement.head import drop_copies

if TYPE_CHECKING:
    from dask.typing import Key
    from distributed import Scheduler

    from workbench.deploy.world import MPIWorld

_Going = dict[int, asyncio.Task[protocol.Outcome]]

# Further failures of other ranks that are told.
_FURTHER = 4
# Seconds for the ranks to come back when a call is ended; see workbench.collective.rank_call.
_GRACE = 1.4
# Seconds for a rank to say where it is; and for the ranks that do not come back.
_WHERE, _WHERE_STUCK = 2.0, 0.3


class CollectiveCall:
    """A call on ranks of a world.

    Parameters
    ----------
    scheduler
        Keeps account of the blocks that are made.
    collectives
        Has the communicators.
    world
        The world.
    members
        The ranks that take part.
    asked
        What the client asks for.
    deadline
        Time of the event loop at which it is ended.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        collectives: CallQueue,
        world: MPIWorld,
        members: RankRPC,
        asked: protocol.Call,
        *,
        deadline: float,
    ) -> None:
        self._scheduler, self._collectives, self._world, self._members = scheduler, collectives, world, members
        self._asked, self._deadline = asked, deadline
        self._call, self._name, self._client = asked["call"], asked["name"], asked["client"]
        self._stopped = asyncio.Event()
        # Blocks that are held for the client.
        self._made: list[Key] = []
        # A sentence on ranks that did not come back, with a blank before it; or nothing.
        self._left = ""

    async def run(self) -> protocol.Answer:
        """Run it, and return how it went."""
        ranks = list(self._members.ranks)
        needs = self._needs(self._asked["keys"])
        self._serial = self._collectives.communicator(self._world, ranks)
        try:
            async with asyncio.timeout_at(self._deadline):
                failed = await self._reserve(needs)
        except BaseException as error:
            self._call_off()
            if isinstance(error, TimeoutError) and not isinstance(error, CollectiveTimeout):
                raise self._late("and had not begun") from None
            raise
        if failed is not None:
            self._call_off()
            return {**failed, "world": self._world.index}
        go = part(protocol.Go, self._asked)
        going: _Going = {rank: asyncio.ensure_future(self._members.ask(rank, protocol.GO, **go)) for rank in ranks}
        attending = asyncio.ensure_future(self._supervise(going))
        try:
            answer = await asyncio.shield(attending)
        except asyncio.CancelledError:
            self._stopped.set()
            # However often it is cancelled: the next call has to wait for the end of this one.
            while not attending.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([attending])
            if self._made and self._client in self._scheduler.clients:
                # The client never hears of these blocks.
                self._scheduler.client_releases_keys(keys=self._made, client=self._client)
            raise
        finally:
            drop_copies(self._scheduler, self._written(needs), f"spmd-{self._call}")
        return {**answer, "world": self._world.index, "addresses": list(self._members.ranks.values())}

    def _needs(self, keys: Sequence[Sequence[Key]]) -> dict[int, Sequence[Key]]:
        """Return by rank the keys of what it is given: without blocks all ranks need the same."""
        ranks = self._members.ranks
        if len(keys) not in (1, len(ranks)):
            raise InvalidRequest(
                f"{self._name} was given {len(keys)} blocks for {len(ranks)} ranks: one block for each rank is needed. "
                "Place the data again, X = place(X)"
            )
        return dict(zip(ranks, keys if len(keys) == len(ranks) else [keys[0]] * len(ranks), strict=True))

    def _written(self, needs: dict[int, Sequence[Key]]) -> list[tuple[Key, str]]:
        """Return what is one rank's own, with its address: of what several are given, each writes to its own copy."""
        owners: dict[Key, str | None] = {}
        for rank, keys in needs.items():
            address = self._members.ranks[rank]
            for key in keys:
                owners[key] = address if owners.get(key, address) == address else None
        return [(key, owner) for key, owner in owners.items() if owner is not None]

    async def _reserve(self, needs: dict[int, Sequence[Key]]) -> protocol.Answer | None:
        admitted = room(len(self._asked["contents"]))
        answers = await gather_or_cancel(self._get_ready(rank, its, admitted) for rank, its in needs.items())
        for rank, answer in zip(self._members.ranks, answers, strict=True):
            if "error" in answer:
                return {"error": answer["error"], "rank": rank, "others": ""}
        return None

    async def _get_ready(self, rank: int, keys: Sequence[Key], admitted: asyncio.Semaphore) -> protocol.Ready:
        request: protocol.Reserve = {
            "call": self._call,
            **part(protocol.Work, self._asked),
            "serial": self._serial,
            "ranks": list(self._members.ranks),
            "keys": keys,
        }
        answer: protocol.Ready
        async with admitted:
            answer = await self._members.ask(rank, protocol.RESERVE, **request)
        if missing := answer.get("missing"):
            tasks = [self._scheduler.tasks.get(key) for key in missing]
            holders = {task.key: [worker.address for worker in task.who_has or ()] for task in tasks if task}
            lost = [key for key in missing if not holders.get(key)]
            if lost or await self._scheduler.gather_on_worker(self._members.ranks[rank], holders):
                raise CollectiveFailed(_gone(lost or missing, self._name))
            async with admitted:
                answer = await self._members.ask(rank, protocol.RESERVE, **request)
            if "missing" in answer:  # again: nobody keeps it
                raise CollectiveFailed(_gone(answer["missing"], self._name))
        if "ended" in answer:
            raise CollectiveFailed(f"{self._name} was called off: {answer['ended']}")
        return answer

    async def _supervise(self, going: _Going) -> protocol.Answer:
        """Wait for all ranks, or until one fails; leave none of them in it."""
        order = await self._over(going, self._deadline)
        answers = {rank: its.result() for rank, its in going.items() if its.done() and not its.exception()}
        if len(answers) == len(going) and not any(map(_failed, going.values())):
            unreceived = sum(answer["messages"] for answer in answers.values()) & KEYS
            if unreceived or any(answer["pending"] for answer in answers.values()):
                # The next call would receive what was meant for this one.
                await self._settle()
            return await self._finish(list(answers.values()))
        return await self._break_off(going, order)

    async def _over(self, going: _Going, until: float) -> list[int]:
        """Return when all have ended, one has failed, or the call is to end; the ranks in the order of their ends."""
        loop = asyncio.get_running_loop()
        order: list[int] = []
        # Told once, not looked for among all whenever one of many ends.
        over: asyncio.Future[None] = loop.create_future()

        def ended(rank: int, its: asyncio.Future[protocol.Outcome]) -> None:
            order.append(rank)
            if not over.done() and (len(order) == len(going) or its.cancelled() or _failed(its)):
                over.set_result(None)

        for rank, its in going.items():
            its.add_done_callback(functools.partial(ended, rank))
        stopping = asyncio.ensure_future(self._stopped.wait())
        try:
            either: list[asyncio.Future[Any]] = [over, stopping]
            await asyncio.wait(either, timeout=max(0.0, until - loop.time()), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
        return order  # to which those are added that end later

    async def _break_off(self, going: _Going, order: Sequence[int]) -> protocol.Answer:
        """End it on all ranks, and return or raise what has happened."""
        first = next((rank for rank in order if _failed(going[rank])), None)
        why = "the call was cancelled" if self._stopped.is_set() else "its time is over"
        self._end(why if first is None else f"rank {first} of world {self._world.index} failed")
        await self._wait_for_stragglers(going)
        return self._failure(going, order)

    async def _settle(self) -> None:
        """Have the ranks receive what is left on the communicator, or have the next call get another one."""
        try:
            async with asyncio.timeout(_GRACE):
                settle: protocol.Settle = {"call": self._call, "serial": self._serial}
                settled = await gather_or_cancel(
                    self._members.ask(rank, protocol.SETTLE, **settle) for rank in self._members.ranks
                )
        except (CollectiveFailed, RankLost, OSError):  # a TimeoutError is one
            settled = [False]
        if not all(settled):
            self._collectives.retire_communicator(self._world, self._serial)

    async def _finish(self, answers: list[protocol.Outcome]) -> protocol.Answer:
        limit = self._asked["limit"]
        if "blocks" not in answers[0]:
            values = [answer["value"] for answer in answers if "value" in answer]
            total = sum(answer.get("nbytes", 0) for answer in answers)
            if limit is not None and total > limit:
                raise CollectiveFailed(
                    f"{self._name} returned {format_bytes(total)}, and {format_bytes(limit)} may travel to the notebook"
                    ' (workbench.spmd.result-limit): return less, keep it on the ranks with result="blocks", or ask '
                    f'for it with limit="{format_bytes(2 * total)}"'
                )
            return {"values": values}
        keys = [key for answer in answers for key in answer["keys"]]
        keeping = {rank: asyncio.ensure_future(self._keep(rank)) for rank in self._members.ranks}
        try:
            order = await self._over(keeping, max(self._deadline, asyncio.get_running_loop().time() + _GRACE))
            if len(order) < len(keeping) or any(map(_failed, keeping.values())):
                return await self._break_off(keeping, order)
            self._require_client()
        except BaseException:
            # In this order: nobody keeps theirs any more, and those who did let go of them.
            self._end("it was called off")
            self._members.tell("free-keys", keys=keys, stimulus_id=f"spmd-{self._call}")
            raise
        for rank, address in self._members.ranks.items():
            for key, nbytes in keeping[rank].result()["kept"]:
                self._scheduler.update_data(who_has={key: [address]}, nbytes={key: nbytes}, client=self._client)
                # Pinned to its rank, as any other block.
                self._scheduler.tasks[key].worker_restrictions = {address}
                self._made.append(key)
        return {"blocks": [answer["blocks"] for answer in answers], "keys": keys}

    async def _keep(self, rank: int) -> protocol.Outcome:
        return {"kept": await self._members.ask(rank, protocol.KEEP, call=self._call)}

    def _require_client(self) -> None:
        if self._stopped.is_set() or self._client not in self._scheduler.clients:
            raise CollectiveFailed("the client that asked for a call on all ranks has gone")

    async def _wait_for_stragglers(self, going: _Going) -> None:
        """Give the ranks time to come back; make no more calls as long as one has not."""
        waiting = [its for its in going.values() if not its.done()]
        if waiting:
            await asyncio.wait(waiting, timeout=_GRACE)
        members = {rank: self._members.ranks[rank] for rank, its in going.items() if not its.done()}
        places = await whereabouts(self._scheduler, self._world.index, members, _WHERE_STUCK)
        if idle := [going[rank] for rank, place in places.items() if place is None]:
            await asyncio.wait(idle, timeout=_GRACE)  # they are out of it, and about to answer
        stuck = {rank: its for rank, its in going.items() if not its.done()}
        if stuck:
            places = {rank: places.get(rank) for rank in stuck}
            reason = f"{rank_locations.words(places)}, and cannot be ended from outside"
            self._collectives.block_until_back(
                self._world, list(stuck.values()), f"{self._name} was ended, but {reason}"
            )
            self._left = f" But {reason}: until that is over no other call on all ranks can be made."

    def _failure(self, going: _Going, order: Sequence[int]) -> protocol.Answer:
        """Return the error of the rank that failed first, or raise what else has happened."""
        refused = root_cause(going[rank].exception() for rank in order)
        answered = {rank: going[rank].result() for rank in order if not going[rank].exception()}
        failed = {rank: answer["error"] for rank, answer in answered.items() if "error" in answer}
        if refused and (not failed or isinstance(refused, RankLost)):
            raise type(refused)(f"{str(refused).rstrip('.')}.{self._left}") from refused
        if not failed:
            if self._stopped.is_set():
                raise CollectiveFailed(self.was_cancelled())
            raise self._late("and was ended")
        first = next(iter(failed.values()))["words"]
        alike = sorted(rank for rank, error in failed.items() if error["words"] == first)
        others = [f"ranks {rank_locations.ranges(alike)} failed alike"] if len(alike) > 1 else []
        further = {rank: error["words"] for rank, error in failed.items() if rank not in alike}
        others += [f"rank {rank} failed with {words[:200]}" for rank, words in list(further.items())[:_FURTHER]]
        return {
            "error": failed[alike[0]],
            "rank": alike[0],
            "others": ("; ".join(others) + "." * bool(others) + self._left).strip(),
        }

    def was_cancelled(self) -> str:
        """Return in words that the call was cancelled, and who did not come back from it."""
        return f"{self._name} was cancelled.{self._left}"

    def _late(self, how: str) -> CollectiveTimeout:
        return CollectiveTimeout(
            f"{self._name} was not done in time on the ranks of world {self._world.index}, {how}.{self._left} Allow "
            "more with timeout=."
        )

    def _call_off(self) -> None:
        """End it where it has not begun: nobody has sent anything."""
        self._tell_end(None, "it was called off")

    def _end(self, reason: str) -> None:
        self._collectives.retire_communicator(self._world, self._serial)
        self._tell_end(self._serial, reason)

    def _tell_end(self, serial: int | None, reason: str) -> None:
        message: protocol.End = {"call": self._call, "serial": serial, "reason": reason}
        self._members.tell(protocol.END, **message)


def _gone(keys: Sequence[Key], name: str) -> str:
    return (
        f"{keys[0]!r}, an argument of {name}, is on no rank any more: place the data again, X = place(X), or broadcast "
        "it again"
    )


def _failed(going: asyncio.Future[protocol.Outcome]) -> bool:
    return going.done() and bool(going.exception() or not going.result().keys().isdisjoint(("error", "ended")))


async def whereabouts(
    scheduler: Scheduler, world: int, members: dict[int, str], timeout: float = _WHERE
) -> dict[int, dict[str, Any] | None]:
    """Return where ranks of a world are, as `workbench.metrics.call_stack` tells; of one that is idle None.

    Parameters
    ----------
    members
        Addresses by rank.
    timeout
        Seconds; of a rank that does not answer by then, or is gone, ``{"silent": True}`` is returned.
    """
    asking = RankRPC(scheduler, world, members, "a look at where it is")

    async def ask(rank: int) -> dict[str, Any] | None:
        try:
            async with asyncio.timeout(timeout):
                told: dict[str, Any] | None = await asking.ask(rank, protocol.WHERE)
                return told
        except (TimeoutError, RuntimeError):
            return {"silent": True}

    return dict(zip(members, await asyncio.gather(*map(ask, members)), strict=True))
