"""What the head keeps of all that ranks tell: the last ten minutes of every rank, and totals; in bounded memory."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.metrics.calls import Calls
from workbench.metrics.fields import BY_NODE, KINDS, NODE, OPERATION, OPERATIONS, RANK, SIZES, TICK
from workbench.metrics.matrices import Matrices
from workbench.metrics.update import Layout, Now, Place, Traffic, Update
from workbench.metrics.world_state import WorldState, node_row

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Ticks that are kept: ten minutes. What fits and reports have told: so many records.
_TICKS, _RECORDS = 1200, 5000
# Seconds after which what a rank has told is of no use any more: time for another to speak for its node.
_PATIENCE = 6 * TICK


@dataclass(frozen=True)
class _Frame:
    seq: int
    time: float
    rank: NDArray[np.float32]
    node: NDArray[np.float32]
    core: NDArray[np.uint8]


class Store:
    """Collects the messages of nodes, and tells whoever asks what is new.

    Parameters
    ----------
    state
        Returns what `Update.state` has.
    clock
        Seconds since the epoch.

    Notes
    -----
    For one thread. `tick` is to be called every `TICK` seconds.
    """

    def __init__(self, state: Callable[[], Mapping[str, Any]] = dict, clock: Callable[[], float] = time.time) -> None:
        self._state, self._clock = state, clock
        self._worlds: dict[int, WorldState] = {}
        self._number_of_cores: dict[str, int] = {}
        self._seq, self._layouts = itertools.count(1), itertools.count(1)
        self._last, self._time = 0, clock()
        self._frames: deque[_Frame] = deque(maxlen=_TICKS)
        self._fits: deque[tuple[int, dict[str, Any]]] = deque(maxlen=_RECORDS)
        self.calls = Calls()
        self._changed = True
        self._arrange()

    # -- what comes in -----------------------------------------------------------------------------------------

    def joined(self, world: int, rank: int, told: Mapping[str, Any]) -> None:
        """Note a rank that is there; `told` has the ``size`` of its world, its ``host`` and the ``cores`` of that."""
        known = self._worlds.get(world)
        if known is None or rank in known.lost or len(known.nodes) != told["size"]:
            # Another start of the world: all that was counted before belongs to processes that are gone.
            known = self._worlds[world] = WorldState(told["size"], by_node=told["size"] > BY_NODE)
        known.nodes[rank] = told["host"]
        self._number_of_cores[told["host"]] = told["cores"]
        self._changed = True

    def left(self, world: int, rank: int) -> None:
        """Note that a rank is gone: it stays among the columns until its world starts again."""
        if world in self._worlds:
            self._worlds[world].lost.add(rank)

    def keep(self, worlds: Collection[int]) -> None:
        """Forget all other worlds: they are gone for good."""
        for index in self._worlds.keys() - set(worlds):
            del self._worlds[index]
            self._changed = True

    def take(self, message: Mapping[str, Any]) -> None:
        """Take the message of a node, as `workbench.rank.node_report` makes it."""
        if world := self._worlds.get(message["world"]):
            world.take(message, self._clock())
            for ended in message["ended"]:
                self.calls.ended(self._last + 1, message["world"], ended)

    def report(self, record: Mapping[str, Any]) -> None:
        """Take what a fit or `workbench.report` tells, see `Update.fits`."""
        self._fits.append((self._last + 1, dict(record)))

    # -- ticks -------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Add how things stand to what is kept."""
        now = self._clock()
        passed, self._time = max(now - self._time, 1e-3), now
        if self._changed:
            self._arrange()
        self._last = next(self._seq)
        samples = {
            index: world.sample(now, passed, _PATIENCE)[world.there] for index, world in sorted(self._worlds.items())
        }
        rank = np.concatenate([np.empty((0, len(RANK)), np.float32), *samples.values()])
        node = np.stack([node_row(self._of_node("node", host)) for host in self.layout.nodes] or [node_row(None)])
        self._frames.append(_Frame(self._last, now, rank, node[: len(self.layout.nodes)], self._cores()))
        self._matrices.add(now, self._traffic())

    def _of_node(self, what: str, host: str) -> Any:
        """Return what the first of the worlds that is on a node tells of it."""
        return next((its[host] for world in self._worlds.values() if host in (its := getattr(world, what))), None)

    def _cores(self) -> NDArray[np.uint8]:
        cores = [np.zeros(number, np.uint8) for number in self.layout.cores]
        for index, host in enumerate(self.layout.nodes):
            told = self._of_node("cores", host)
            if told is not None and len(told) == len(cores[index]):
                cores[index] = told
        return np.concatenate([np.empty(0, np.uint8), *cores])

    def _arrange(self) -> None:
        """Begin anew with the ranks and nodes that there are now."""
        self._changed = False
        hosts = list(dict.fromkeys(host for _, world in sorted(self._worlds.items()) for host in world.nodes if host))
        places = tuple(
            Place(index, rank, hosts.index(host))
            for index, world in sorted(self._worlds.items())
            for rank, host in enumerate(world.nodes)
            if host
        )
        cores = tuple(self._number_of_cores[host] for host in hosts)
        self.layout = Layout(next(self._layouts), places, tuple(hosts), cores)
        self._frames.clear()
        self._by_node = any(world.by_node for world in self._worlds.values())
        self._matrices = Matrices(len(hosts) if self._by_node else len(places))

    def _traffic(self) -> Traffic:
        layout = self.layout
        places = len(layout.nodes) if self._by_node else len(layout.ranks)
        totals = np.zeros((2, len(KINDS), places, places))
        begin = 0
        for _, world in sorted(self._worlds.items()):
            there = world.there
            if self._by_node:
                members = np.zeros((places, len(world.nodes)))
                members[[layout.nodes.index(world.nodes[rank]) for rank in there], there] = 1
                # what goes to a node is told as what goes to its first rank
                received = world.sent[..., members.argmax(axis=1)] * members.any(axis=1)
                totals += members @ received
            else:
                end = begin + len(there)
                totals[:, :, begin:end, begin:end] = world.sent[:, :, there][:, :, :, there]
                begin = end
        return Traffic(*totals)

    # -- what goes out -----------------------------------------------------------------------------------------

    def update(self, since: int = 0) -> Update:
        """Return what is new since the update with this `Update.seq`; 0: everything that is kept."""
        frames = [frame for frame in self._frames if frame.seq > since]
        layout, worlds = self.layout, [world for _, world in sorted(self._worlds.items())]
        silent = Now("lost", None, 0.0)
        now = [silent if rank in world.lost else world.now[rank] for world in worlds for rank in world.there]
        return Update(
            seq=self._last,
            layout=layout,
            times=np.array([frame.time for frame in frames], np.float64),
            rank=_stacked([frame.rank for frame in frames], len(layout.ranks), len(RANK)),
            node=_stacked([frame.node for frame in frames], len(layout.nodes), len(NODE)),
            core=_stacked([frame.core for frame in frames], sum(layout.cores), dtype=np.uint8),
            now=tuple(now[: len(layout.ranks)]),
            by="node" if self._by_node else "rank",
            traffic=self._matrices.total,
            recent=self._matrices.recent,
            operations=sum((its.operations for its in worlds), np.zeros((len(OPERATIONS), len(OPERATION)))),
            sizes=sum((its.sizes for its in worlds), np.zeros((len(KINDS), SIZES))),
            fits=[record for seq, record in self._fits if since < seq <= self._last],
            calls=self.calls.since(since, self._last),
            state=self._state(),
        )

    def pair(self, source: int, target: int) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
        """As `Matrices.pair`; nothing for places that there are no more."""
        if not all(0 <= place < len(self._matrices.total.bytes[0]) for place in (source, target)):
            return np.empty(0), np.empty((0, len(KINDS)), np.float32)
        return self._matrices.pair(source, target)


def _stacked(arrays: list[NDArray[Any]], *shape: int, dtype: Any = np.float32) -> NDArray[Any]:
    return np.stack(arrays) if arrays else np.empty((0, *shape), dtype)
