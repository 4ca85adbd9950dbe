"""One message for all ranks of a world on a node: what they have written on the board, as arrays for the head."""

from __future__ import annotations

import dataclasses
import socket
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from workbench.metrics import system
from workbench.metrics.node_message import pack_rows
from workbench.metrics.rank_sample import Told
from workbench.metrics.schema import COUNTERS, PARTS, SAMPLED, TICK
from workbench.metrics.shared_slots import Board
from workbench.mpi.operation_names import OPERATIONS

if TYPE_CHECKING:
    from workbench.mpi.context import RankContext

# Seconds without a word after which a rank is held to be stuck: code that holds the interpreter, or a dead process.
_SILENT = 3 * TICK
_NUMBER = {name: index for index, name in enumerate(OPERATIONS)}


class NodeReport:
    """Sends what the ranks of this node tell, if this rank is the one to do so: the first that is not stuck.

    Parameters
    ----------
    context
        The rank.
    board
        That of this node.
    start
        Name of this start of the world.
    send
        Sends a message to the head.
    offset
        Returns the seconds that the head's clock is ahead of this node's; None: that is not known.
    """

    def __init__(
        self,
        context: RankContext,
        board: Board,
        start: str,
        send: Callable[[dict[str, Any]], None],
        offset: Callable[[], float | None] = lambda: 0.0,
    ) -> None:
        self._context, self._board, self._start, self._send, self._offset = context, board, start, send, offset
        self._ranks = [rank for rank, node in enumerate(context.nodes) if node == context.nodes[context.rank]]
        self._host = socket.gethostname()
        self._node: system.Node | None = None
        self._said: dict[tuple[int, ...], Any] = {}
        self._met: dict[int, float] = {}
        self._last: dict[int, float] = {}
        self._since = self._ticked = time.monotonic()
        self._looked: dict[int, system.ProcessUsage] = {}

    def tick(self) -> None:
        """Send the message of this node, if it is this rank's turn."""
        now = time.monotonic()
        told = {rank: its for rank in self._ranks if (its := self._board.read(rank)) is not None}
        speaks = next((rank for rank, its in told.items() if now - its.time < _SILENT), None)
        # Where this thread stood still somebody else has spoken meanwhile.
        goes_on, self._ticked = now - self._ticked < _SILENT, now
        if speaks != self._context.rank or not goes_on:
            # Who takes over has nothing to compare with, and tells all totals; what is over by now somebody else tells.
            self._node, self._said, self._met, self._last, self._since = None, {}, {}, {}, now
            return
        if self._node is None:
            self._node = system.Node()
            return
        try:
            self._send(self._message(now, told, *self._node.sample()))
        except BaseException:
            # What was not sent was not said.
            self._said = {}
            raise

    def _message(self, now: float, told: dict[int, Told], node: Any, cores: Any) -> dict[str, Any]:
        ahead = self._offset()
        # what the head's clock shows when this node's monotonic clock shows 0
        zero = time.time() - now + (ahead or 0.0)
        told = {rank: self._looked_at(rank, its) if now - its.time > _SILENT else its for rank, its in told.items()}
        return {
            "op": "workbench-metrics",
            "world": self._context.world,
            "start": self._start,
            "host": self._host,
            "node": node.tobytes(),
            "cores": cores.tobytes(),
            "ranks": list(told),
            "values": pack_rows([its.values[name] for name in SAMPLED] for its in told.values()),
            "now": [
                (its.what, its.operation, its.since + zero, now - its.time if now - its.time > _SILENT else 0.0)
                for its in told.values()
            ],
            "sent": pack_rows(row for rank, its in told.items() for row in self._new_traffic(rank, its)),
            "operations": pack_rows(row for rank, its in told.items() for row in self._new_operations(rank, its)),
            "sizes": pack_rows(row for rank, its in told.items() for row in self._new_sizes(rank, its)),
            "ended": [row for rank, its in told.items() for row in self._new_ended(rank, its, zero)],
            **self._new_meetings({} if ahead is None else told, zero),
        }

    def _looked_at(self, rank: int, its: Told) -> Told:
        """Return what can be seen from outside of a rank that tells nothing itself."""
        try:
            seen = system.process(psutil.Process(its.pid))
        except psutil.Error:
            return dataclasses.replace(its, values={**its.values, **dict.fromkeys((*COUNTERS, *PARTS, "tasks"), 0.0)})
        before = self._looked.get(rank, seen)
        self._looked[rank] = seen
        # It holds the interpreter, so it computes, or waits in C code that knows nothing of others.
        parts = {**dict.fromkeys(PARTS, 0.0), "busy": 1.0}
        return dataclasses.replace(its, values={**its.values, **seen.since(before), **parts})

    def _is_new(self, key: tuple[int, ...], value: Any) -> bool:
        if self._said.get(key) == value:
            return False
        self._said[key] = value
        return True

    def _new_traffic(self, rank: int, its: Told) -> Sequence[tuple[float, ...]]:
        return [
            (rank, peer, kind, *counts)
            for kind, sent in its.sent.items()
            for peer, counts in sent.items()
            if self._is_new((0, rank, kind, peer), tuple(counts))
        ]

    def _new_operations(self, rank: int, its: Told) -> Sequence[tuple[float, ...]]:
        sums: dict[int, tuple[float, ...]] = {}
        for name, counts in its.operations.items():
            number = _NUMBER.get(name, 0)  # several are "other"
            sums[number] = tuple(map(sum, zip(counts, sums.get(number, (0, 0, 0.0)), strict=True)))
        return [(rank, number, *sums[number]) for number in sums if self._is_new((1, rank, number), sums[number])]

    def _new_sizes(self, rank: int, its: Told) -> Sequence[tuple[float, ...]]:
        return [
            (rank, kind, *counts)
            for kind, counts in enumerate(its.sizes)
            if self._is_new((2, rank, kind), tuple(counts))
        ]

    def _new_ended(self, rank: int, its: Told, zero: float) -> Sequence[dict[str, Any]]:
        known = self._last.get(rank, self._since)
        new = [ended for ended in its.ended if ended.end > known]
        self._last[rank] = max([known, *(ended.end for ended in new)])
        return [dataclasses.asdict(each) | {"begin": each.begin + zero, "end": each.end + zero} for each in new]

    def _new_meetings(self, told: dict[int, Told], zero: float) -> dict[str, bytes]:
        who: list[tuple[int, ...]] = []
        when: list[tuple[float, ...]] = []
        for rank, its in told.items():
            known = self._met.get(rank, self._since)
            for key, number, operation, entered, left in its.meetings:
                if left > known:
                    who.append((rank, key, number, _NUMBER.get(operation, 0)))
                    when.append((entered + zero, left + zero))
                    self._met[rank] = max(self._met.get(rank, known), left)
        return {"who": np.array(who, np.int64).tobytes(), "when": pack_rows(when)}
