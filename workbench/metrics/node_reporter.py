"""One message for all ranks of a world on a node: the samples in their shared slots, as arrays for the head."""

from __future__ import annotations

import dataclasses
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from workbench.metrics import system
from workbench.metrics.node_message import pack_rows
from workbench.metrics.schema import COUNTERS, PARTS, SAMPLED, TICK
from workbench.metrics.shared_slots import RankSample, SharedSlots
from workbench.mpi.counters import OPERATIONS

if TYPE_CHECKING:
    from workbench.mpi.context import RankContext

# Seconds without a sample after which a rank counts as stuck: its code holds the GIL, or the process is dead.
_SILENT_AFTER_S = 3 * TICK
_OPERATION_INDEX = {name: index for index, name in enumerate(OPERATIONS)}


class NodeReporter:
    """Sends the samples of all ranks of this node, if this rank is the first rank that is not stuck.

    Parameters
    ----------
    context
        This rank.
    slots
        The shared slots of this node.
    start
        Name of this start of the world.
    send
        Sends a message to the head.
    offset
        Returns the seconds by which the head's clock is ahead of this node's; None while they are unknown.
    """

    def __init__(
        self,
        context: RankContext,
        slots: SharedSlots,
        start: str,
        send: Callable[[dict[str, Any]], None],
        offset: Callable[[], float | None] = lambda: 0.0,
    ) -> None:
        self._context, self._slots, self._start, self._send, self._offset = context, slots, start, send, offset
        self._ranks = [rank for rank, node in enumerate(context.nodes) if node == context.nodes[context.rank]]
        self._host = socket.gethostname()
        self._node: system.NodeUsage | None = None
        self._sent: dict[tuple[int, ...], Any] = {}
        self._last_synchronization: dict[int, float] = {}
        self._last_call_end: dict[int, float] = {}
        self._since = self._last_tick = time.monotonic()
        self._usage_of_silent: dict[int, system.ProcessUsage] = {}

    def tick(self) -> None:
        """Send the message of this node, if it is this rank's turn."""
        now = time.monotonic()
        samples = {rank: sample for rank in self._ranks if (sample := self._slots.read(rank)) is not None}
        sender = next((rank for rank, sample in samples.items() if now - sample.time < _SILENT_AFTER_S), None)
        # If this thread was blocked, another rank has sent the messages meanwhile.
        was_blocked, self._last_tick = now - self._last_tick >= _SILENT_AFTER_S, now
        if sender != self._context.rank or was_blocked:
            # A rank that takes over has no previous message: it sends all totals, and no events of the past.
            self._node, self._sent, self._last_synchronization, self._last_call_end, self._since = None, {}, {}, {}, now
            return
        if self._node is None:
            self._node = system.NodeUsage()
            return
        try:
            self._send(self._message(now, samples, *self._node.sample()))
        except BaseException:
            # The message was not sent, so all totals are new again.
            self._sent = {}
            raise

    def _message(self, now: float, samples: dict[int, RankSample], node: Any, cores: Any) -> dict[str, Any]:
        ahead = self._offset()
        # The time of the head's clock when this node's monotonic clock was 0.
        zero = time.time() - now + (ahead or 0.0)
        silences = {rank: now - sample.time for rank, sample in samples.items() if now - sample.time > _SILENT_AFTER_S}
        samples |= {rank: self._measure_silent(rank, samples[rank]) for rank in silences}

        def new_rows(rows_of: Callable[[int, RankSample], Iterable[Sequence[float]]]) -> bytes:
            return pack_rows(row for rank, sample in samples.items() for row in rows_of(rank, sample))

        return {
            "op": "workbench-metrics",
            "world": self._context.world,
            "start": self._start,
            "host": self._host,
            "node": node.tobytes(),
            "cores": cores.tobytes(),
            "ranks": list(samples),
            "values": pack_rows([sample.values[name] for name in SAMPLED] for sample in samples.values()),
            "now": [
                (sample.what, sample.operation, sample.since + zero, silences.get(rank, 0.0))
                for rank, sample in samples.items()
            ],
            "sent": new_rows(self._new_traffic),
            "operations": new_rows(self._new_operations),
            "sizes": new_rows(self._new_sizes),
            "ended": [row for rank, sample in samples.items() for row in self._new_ended(rank, sample, zero)],
            **self._new_synchronizations({} if ahead is None else samples, zero),
        }

    def _measure_silent(self, rank: int, sample: RankSample) -> RankSample:
        """Return a sample of a rank that writes none, with the numbers that another process can measure."""
        try:
            usage = system.process_usage(psutil.Process(sample.pid))
        except psutil.Error:  # the process has ended
            zeros = dict.fromkeys((*COUNTERS, *PARTS, "tasks"), 0.0)
            return dataclasses.replace(sample, values={**sample.values, **zeros})
        before = self._usage_of_silent.get(rank, usage)
        self._usage_of_silent[rank] = usage
        # The rank holds the GIL: it computes, or waits in C code outside the counted operations.
        parts = {**dict.fromkeys(PARTS, 0.0), "busy": 1.0}
        return dataclasses.replace(sample, values={**sample.values, **usage.since(before), **parts})

    def _is_new(self, key: tuple[int, ...], value: Any) -> bool:
        if self._sent.get(key) == value:
            return False
        self._sent[key] = value
        return True

    def _new_traffic(self, rank: int, sample: RankSample) -> Sequence[tuple[float, ...]]:
        return [
            (rank, peer, kind, *counts)
            for kind, sent in sample.sent.items()
            for peer, counts in sent.items()
            if self._is_new((0, rank, kind, peer), tuple(counts))
        ]

    def _new_operations(self, rank: int, sample: RankSample) -> Sequence[tuple[float, ...]]:
        sums: dict[int, tuple[float, ...]] = {}
        for name, counts in sample.operations.items():
            number = _OPERATION_INDEX.get(name, 0)  # 0 is "other", which sums several names
            sums[number] = tuple(map(sum, zip(counts, sums.get(number, (0, 0, 0.0)), strict=True)))
        return [(rank, number, *sums[number]) for number in sums if self._is_new((1, rank, number), sums[number])]

    def _new_sizes(self, rank: int, sample: RankSample) -> Sequence[tuple[float, ...]]:
        return [
            (rank, kind, *counts)
            for kind, counts in enumerate(sample.sizes)
            if self._is_new((2, rank, kind), tuple(counts))
        ]

    def _new_ended(self, rank: int, sample: RankSample, zero: float) -> Sequence[dict[str, Any]]:
        last_end = self._last_call_end.get(rank, self._since)
        new = [call for call in sample.ended if call.end > last_end]
        self._last_call_end[rank] = max([last_end, *(call.end for call in new)])
        return [dataclasses.asdict(call) | {"begin": call.begin + zero, "end": call.end + zero} for call in new]

    def _new_synchronizations(self, samples: dict[int, RankSample], zero: float) -> dict[str, bytes]:
        who: list[tuple[int, ...]] = []
        when: list[tuple[float, ...]] = []
        for rank, sample in samples.items():
            sent_until = self._last_synchronization.get(rank, self._since)
            for key, number, operation, entered, left in sample.synchronizations:
                if left > sent_until:
                    who.append((rank, key, number, _OPERATION_INDEX.get(operation, 0)))
                    when.append((entered + zero, left + zero))
                    self._last_synchronization[rank] = max(self._last_synchronization.get(rank, sent_until), left)
        return {"who": np.array(who, np.int64).tobytes(), "when": pack_rows(when)}
