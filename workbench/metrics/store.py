"""The metrics that the head keeps: the last ten minutes of every rank, totals, and traffic; in bounded memory."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.metrics.schema import KEPT, KINDS, NODE, RANK, TICK
from workbench.metrics.training import Fits
from workbench.metrics.update import (
    LOST,
    NO_SAMPLE,
    CallCosts,
    Layout,
    RankActivity,
    RankPlace,
    Traffic,
    Update,
    shared_cores,
)
from workbench.metrics.world_state import LATE, WorldState
from workbench.mpi.counters import OPERATIONS

if TYPE_CHECKING:
    from numpy.typing import NDArray


_TICKS_KEPT = round(KEPT / TICK)
# Seconds for which the sample of a rank is valid: time for another rank to send the messages of its node.
_VALID_S = 6 * TICK
# A client that has died does not request the wait times of its mark.
_MARK_KEPT_S = 60.0

_WaitRows = list[tuple[int, str, float, float]]


@dataclass(frozen=True)
class _Frame:
    seq: int
    time: float
    rank: NDArray[np.float32]
    node: NDArray[np.float32]
    core: NDArray[np.uint8]


class Store:
    """Collects the messages of nodes, and returns all that is new to each client; for one thread.

    Parameters
    ----------
    state
        Returns the mapping `Update.state`.
    clock
        Returns seconds since the epoch.
    """

    def __init__(self, state: Callable[[], Mapping[str, Any]] = dict, clock: Callable[[], float] = time.time) -> None:
        self._state, self._clock = state, clock
        self._world = WorldState(-1, 0, "")
        # By host: the number of cores, and the time and the numbers of the last message.
        self._number_of_cores: dict[str, int] = {}
        self._nodes: dict[str, tuple[float, NDArray[np.float32], NDArray[np.uint8]]] = {}
        self._layouts = itertools.count(1)
        self._seq, self._time = 0, clock()
        self._frames: deque[_Frame] = deque(maxlen=_TICKS_KEPT)
        self._fits, self.calls = Fits(), CallCosts()
        self._changed = True
        # The wait times until each mark, None until all ranks have sent theirs.
        self._marks: dict[float, _WaitRows | None] = {}
        self._new_layout()

    # -- input -------------------------------------------------------------------------------------------------

    def joined(self, world: int, rank: int, facts: Mapping[str, Any]) -> None:
        """Add a rank, with the ``size`` and ``start`` of its world, its ``host``, and the ``cores`` of the host.

        ``cpus`` are the numbers of the cores that the rank may use. A rank of another world or start replaces the
        present world.
        """
        if (self._world.index, self._world.start) != (world, facts["start"]):
            # The counts of an earlier start belong to processes that have ended.
            self._world = WorldState(world, facts["size"], facts["start"])
        self._world.nodes[rank], self._world.cpus[rank] = facts["host"], facts["cpus"]
        self._world.lost.pop(rank, None)
        self._number_of_cores[facts["host"]] = facts["cores"]
        self._changed = True

    def left(self, world: int, rank: int) -> None:
        """Mark a rank as lost: its columns stay until its world starts again."""
        if world == self._world.index:
            self._world.lost[rank] = self._clock()

    def take(self, message: Mapping[str, Any]) -> None:
        """Store a message of `workbench.metrics.node_reporter`, if it is of the present world and start."""
        now = self._clock()
        if (self._world.index, self._world.start) == (message["world"], message["start"]):
            self._world.take(message, now)
            node = np.frombuffer(message["node"], np.float32), np.frombuffer(message["cores"], np.uint8)
            if len(node[0]) != len(NODE):
                raise ValueError(f"a node has {len(NODE)} numbers, and {message['host']} has sent {len(node[0])}")
            self._nodes[message["host"]] = now, *node
            for call in message["ended"]:
                self.calls.ended(self._seq + 1, call)

    def got_on(self, world: int, ranks: Collection[int]) -> float:
        """Return when one of these ranks last entered or left an operation; 0 if that is unknown."""
        if world != self._world.index:
            return 0.0
        return max((self._world.now[rank].since for rank in ranks), default=0.0)

    def report(self, record: Mapping[str, Any]) -> None:
        """Store a record of a fit or of `workbench.report`, see `Update.fits`."""
        self._fits.add(self._seq + 1, record)

    # -- ticks -------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Store the current samples as the next frame; call this every `TICK` seconds."""
        now = self._clock()
        # Times in the history of a viewer must increase.
        was_set_back = now < self._time
        passed, self._time = now - self._time if now > self._time else TICK, now
        self._keep_wait_times(now)
        if self._changed or was_set_back:
            self._new_layout()
        self._seq += 1
        rank = self._world.sample(now, passed, _VALID_S)[self._world.known_ranks]
        self._frames.append(_Frame(self._seq, now, rank, *self._node_samples(now)))
        self._traffic_history.add(now, self._traffic())
        self._now = self._activities()

    def _keep_wait_times(self, now: float) -> None:
        # The sample after this adds later synchronizations to the totals.
        self._marks = {
            mark: self._sum_waits(mark) if kept is None and mark <= now - LATE else kept
            for mark, kept in sorted(self._marks.items())
            if mark > now - _MARK_KEPT_S
        }

    def _node_samples(self, now: float) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
        layout = self.layout
        node = np.full((len(layout.nodes), len(NODE)), np.nan, np.float32)
        cores = [np.full(number, NO_SAMPLE, np.uint8) for number in layout.cores]
        for index, host in enumerate(layout.nodes):
            received_at, values, percent = self._nodes.get(host, (-np.inf, node[index], cores[index]))
            if now - received_at <= _VALID_S:
                node[index] = values
                if len(percent) == len(cores[index]):
                    cores[index] = percent
        return node, np.concatenate([np.empty(0, np.uint8), *cores])

    def _activities(self) -> tuple[RankActivity, ...]:
        world = self._world
        return tuple(
            RankActivity(LOST, None, world.lost[rank]) if rank in world.lost else world.now[rank]
            for rank in world.known_ranks
        )

    def _new_layout(self) -> None:
        """Restart the history with the current ranks and nodes."""
        self._changed = False
        world = self._world
        hosts = list(dict.fromkeys(filter(None, world.nodes)))
        places = tuple(RankPlace(rank, hosts.index(world.nodes[rank])) for rank in world.known_ranks)
        self._nodes = {host: values for host, values in self._nodes.items() if host in hosts}
        cores = tuple(self._number_of_cores[host] for host in hosts)
        shared = shared_cores([place.node for place in places], [world.cpus[place.rank] for place in places])
        self.layout = Layout(next(self._layouts), places, tuple(hosts), cores, shared)
        self._frames.clear()
        self._by_node: bool = world.by_node
        self._now = self._activities()
        self._traffic_history: TrafficHistory = TrafficHistory(len(hosts) if self._by_node else len(places))

    def _traffic(self) -> Traffic:
        known, sent = np.array(self._world.known_ranks, np.intp), self._world.sent
        if not self._by_node:
            return Traffic(*sent[:, :, known[:, None], known])
        nodes = np.array([place.node for place in self.layout.ranks])
        by_node = np.argsort(nodes, kind="stable")
        ranks, firsts = known[by_node], np.unique(nodes[by_node], return_index=True)[1]
        # Traffic to a node is counted as traffic to its first rank.
        return Traffic(*np.add.reduceat(sent[:, :, ranks[:, None], ranks[firsts]], firsts, axis=2))

    # -- output ------------------------------------------------------------------------------------------------

    def update(self, since: int = 0) -> Update:
        """Return all that is new since the update with this `Update.seq`; 0: all that the store keeps."""
        frames = [frame for frame in self._frames if frame.seq > since]
        layout = self.layout
        return Update(
            seq=self._seq,
            layout=layout,
            times=np.array([frame.time for frame in frames], np.float64),
            rank=_stacked([frame.rank for frame in frames], len(layout.ranks), len(RANK)),
            node=_stacked([frame.node for frame in frames], len(layout.nodes), len(NODE)),
            core=_stacked([frame.core for frame in frames], sum(layout.cores), dtype=np.uint8),
            now=self._now,
            by="node" if self._by_node else "rank",
            traffic=self._traffic_history.total,
            recent=self._traffic_history.recent,
            operations=self._world.operations,
            sizes=self._world.sizes,
            fits=self._fits.since(since, self._seq),
            calls=self.calls.since(since, self._seq),
            state=self._state(),
        )

    def pulse(self) -> dict[str, float]:
        """Return the last tick's ``cpu`` (mean of the ranks, percent of a core) and ``memory`` (sum, bytes), or 0."""
        last = self._frames[-1].rank if self._frames else np.empty((0, len(RANK)), np.float32)
        cpu, memory = (last[:, RANK.index(name)].astype(np.float64) for name in ("cpu", "memory"))
        mean = float(np.nanmean(cpu)) if np.isfinite(cpu).any() else 0.0
        return {"cpu": mean, "memory": float(np.nansum(memory))}

    def mark(self) -> float:
        """Return the current time, in seconds since the epoch, for which `wait_times` is exact."""
        now = self._clock()
        self._marks[now] = None
        return now

    def wait_times(self, mark: float) -> _WaitRows:
        """Return rank, operation, seconds waited and seconds in the operation until the time of a `mark`.

        Call this `LATE` seconds after the mark or later; see `WorldState.wait_times`.
        """
        self._keep_wait_times(self._clock())
        kept = self._marks.pop(mark, None)
        return self._sum_waits(mark) if kept is None else kept

    def _sum_waits(self, until: float) -> _WaitRows:
        seconds = self._world.wait_times(until)
        return [
            (int(rank), OPERATIONS[number], *seconds[rank, number].tolist())
            for rank, number in zip(*seconds[:, :, 1].nonzero(), strict=True)
        ]

    def pair(self, source: int, target: int) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
        """Return `TrafficHistory.pair`; empty for places that no longer exist."""
        if not all(0 <= place < len(self._traffic_history.total.bytes[0]) for place in (source, target)):
            return np.empty(0), np.empty((0, len(KINDS)), np.float32)
        return self._traffic_history.pair(source, target)


def _stacked(arrays: list[NDArray[Any]], *shape: int, dtype: Any = np.float32) -> NDArray[Any]:
    return np.stack(arrays) if arrays else np.empty((0, *shape), dtype)


RECENT_S = 10.0
# The history of all pairs: seconds between two rates, number of rates, and places above which it is shorter.
_RATE_INTERVAL_S, _RATES_KEPT, _PLACES_IN_FULL = 1.0, 600, 64


class TrafficHistory:
    """Totals of all pairs of places over time, in bounded memory."""

    def __init__(self, places: int) -> None:
        nothing = np.zeros((len(KINDS), places, places))
        self.total = Traffic(nothing, nothing)
        self._recent_totals: deque[tuple[float, Traffic]] = deque()
        steps = (
            _RATES_KEPT if places <= _PLACES_IN_FULL else max(10, int(_RATES_KEPT * (_PLACES_IN_FULL / places) ** 2))
        )
        self._rates: deque[tuple[float, NDArray[np.float32]]] = deque(maxlen=steps)
        self._step: tuple[float, NDArray[np.float64]] | None = None

    def add(self, now: float, total: Traffic) -> None:
        """Add the totals of the time `now`, in seconds since the epoch."""
        self.total = total
        self._recent_totals.append((now, total))
        while now - self._recent_totals[0][0] > RECENT_S and len(self._recent_totals) > 1:
            self._recent_totals.popleft()
        if self._step is None:
            self._step = (now, total.bytes)
        elif now - self._step[0] >= _RATE_INTERVAL_S:
            then, before = self._step
            self._rates.append((now, ((total.bytes - before) / (now - then)).astype(np.float32)))
            self._step = (now, total.bytes)

    @property
    def recent(self) -> Traffic:
        """Traffic of the last ten seconds."""
        before = self._recent_totals[0][1] if self._recent_totals else self.total
        return Traffic(
            np.maximum(self.total.bytes - before.bytes, 0.0), np.maximum(self.total.messages - before.messages, 0.0)
        )

    def pair(self, source: int, target: int) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
        """Return the history of a pair: times, shape (t,), and bytes per second by kind, shape (t, len(KINDS))."""
        times = np.array([time for time, _ in self._rates], np.float64)
        rates = np.array([rate[:, source, target] for _, rate in self._rates], np.float32)
        return times, rates.reshape(len(times), len(KINDS))
