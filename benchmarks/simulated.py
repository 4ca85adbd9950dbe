"""Simulated cluster: the metrics that a head would return, of any number of ranks, the same for the same seed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.metrics.schema import BY_NODE, KEPT, KINDS, NODE, OPERATION, RANK, TICK
from workbench.metrics.update import Layout, RankActivity, RankPlace, Traffic, Update, shared_cores
from workbench.mpi.counters import OPERATIONS, SIZES

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Ticks that a head remembers.
_REMEMBERED = round(KEPT / TICK)
# Ticks of a fit, its pause included; of them, when the straggler keeps the others waiting.
_FIT, _PAUSE, _STUCK = 160, 12, range(100, 130)
_FITS = (("KMeans", "inertia", "shift"), ("LogisticRegression", "loss", "gradient_norm"))
_GIB = float(1 << 30)


class Simulated:
    """Ranks that train one model after the other, one of them slower than the rest.

    Parameters
    ----------
    ranks
        Number of ranks.
    nodes
        Number of nodes, which share the ranks evenly.
    cores
        Cores of each node.
    seed
        Of everything that is drawn.
    history
        Seconds of metrics before the first request.
    clock
        Returns the time, in seconds since the epoch.

    Attributes
    ----------
    straggler : int
        The rank that the others wait for.
    began : float
        Time of the first tick, in seconds since the epoch.
    """

    def __init__(
        self,
        ranks: int,
        nodes: int = 1,
        *,
        cores: int = 16,
        seed: int = 0,
        history: float = 180.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        places = tuple(RankPlace(rank, rank * nodes // ranks) for rank in range(ranks))
        names = tuple(f"node{node + 1:03}" for node in range(nodes))
        shared = shared_cores([place.node for place in places], [range(cores)] * ranks)
        self.layout = Layout(1, places, names, (cores,) * nodes, shared)
        self.straggler = 2 * ranks // 3
        self._seed, self._clock = seed, clock
        self.began = clock() - history
        self._by, between = ("rank", ranks) if ranks <= BY_NODE else ("node", nodes)
        rng = np.random.default_rng([seed, 0])
        self._memory = rng.normal(3.0, 0.25, ranks) * _GIB
        self._cost = rng.normal(0.62, 0.02, ranks)
        self._rates = np.stack([_shuffle(rng, between), _ring(between)]) * max(1, ranks / between) * 1e6

    async def ask(self, since: int) -> Update:
        """Return all ticks after that one."""
        last = int((self._clock() - self.began) / TICK)
        ticks = range(max(since, last - _REMEMBERED, 0) + 1, last + 1)
        frames = [self._frame(tick) for tick in ticks]
        ranks, nodes = len(self.layout.ranks), len(self.layout.nodes)
        traffic = self._traffic(last * TICK)
        return Update(
            seq=last,
            layout=self.layout,
            times=np.array([self.began + tick * TICK for tick in ticks]),
            rank=np.array([frame[0] for frame in frames], np.float32).reshape(-1, ranks, len(RANK)),
            node=np.array([frame[1] for frame in frames], np.float32).reshape(-1, nodes, len(NODE)),
            core=np.array([frame[2] for frame in frames], np.uint8).reshape(-1, sum(self.layout.cores)),
            now=self._now(last),
            by=self._by,
            traffic=traffic,
            recent=self._traffic(10.0),
            operations=self._operations(last),
            sizes=_sizes(last, ranks),
            fits=[record for tick in ticks for record in self._record(tick)],
            state={
                "name": "simulated",
                "state": "ready",
                "message": "",
                "ranks": ranks,
                "present": ranks,
                "ends": self.began + 8 * 3600,
            },
        )

    async def pair(self, source: int, target: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return what one place has sent to another, as it is remembered."""
        last = int((self._clock() - self.began) / TICK)
        ticks = np.arange(max(1, last - _REMEMBERED), last + 1)
        wave = 1 + 0.4 * np.sin(ticks / 9 + source) * np.cos(ticks / 23 + target)
        busy = ticks % _FIT < _FIT - _PAUSE
        rates: NDArray[np.float64] = np.outer(wave * busy, self._rates[:, source, target])
        return (self.began + ticks * TICK).astype(np.float64), rates

    def _phase(self, tick: int) -> str:
        step = tick % _FIT
        if step >= _FIT - _PAUSE:
            return "idle"
        return "stuck" if step in _STUCK else "fit"

    def _frame(self, tick: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        rng, phase = np.random.default_rng([self._seed, 1, tick]), self._phase(tick)
        ranks, nodes = len(self.layout.ranks), len(self.layout.nodes)
        compute = np.clip(self._cost + rng.normal(0, 0.03, ranks), 0.02, 0.9)
        compute[self.straggler] = 0.93
        if phase == "stuck":
            compute[:] = 0.01
            compute[self.straggler] = 0.99
        elif phase == "idle":
            compute = np.abs(rng.normal(0.02, 0.01, ranks))
        left = 1 - compute
        mpi = left * (0.02 if phase == "stuck" else 0.3)
        waiting = left - mpi if phase != "idle" else 0 * left
        shares: dict[str, NDArray[Any]] = {
            "compute": compute,
            "mpi": mpi if phase != "idle" else 0 * left,
            "waiting": waiting,
        }
        shares["idle"] = 1 - compute - shares["mpi"] - waiting
        busy = 0.0 if phase == "idle" else 0.05 if phase == "stuck" else 1.0
        sent = self._rates.sum() / ranks * busy * (1 + 0.2 * np.sin(tick / 7))
        grown = 1 + (np.arange(ranks) == ranks // 5) * (tick % 1200) / 1600
        values = {
            "cpu": 100 * (compute + mpi),
            "memory": self._memory * grown * (1 + 0.1 * np.sin(tick / 30)),
            "threads": np.full(ranks, 12.0),
            "read": rng.exponential(2e5, ranks),
            "written": rng.exponential(1e5, ranks),
            "tasks": (rng.random(ranks) < 0.1) * 1.0,
            "sent": sent * rng.normal(1, 0.1, ranks),
            "received": sent * rng.normal(1, 0.1, ranks),
            **shares,
        }
        home = np.array([place.node for place in self.layout.ranks])
        used = np.bincount(home, values["memory"], nodes) + 6 * _GIB
        total = max(64.0, 2 ** np.ceil(np.log2(ranks / nodes * 5))) * _GIB
        net = sent * ranks / nodes * rng.normal(1, 0.1, (2, nodes))
        node = np.stack([used, np.full(nodes, total), *net, *rng.exponential(3e6, (2, nodes))], axis=1)
        core = rng.uniform(0, 6, sum(self.layout.cores))
        per = self.layout.cores[0]
        taken = home * per + (np.arange(ranks) - np.searchsorted(home, home)) % per
        np.add.at(core, taken, values["cpu"])
        unknown = np.full(ranks, np.nan)
        return np.stack([values.get(name, unknown) for name in RANK], axis=1), node, np.clip(core, 0, 100)

    def _now(self, tick: int) -> tuple[RankActivity, ...]:
        phase, moment = self._phase(tick), self.began + tick * TICK
        if phase == "idle":
            return (RankActivity("", None, moment - 1),) * len(self.layout.ranks)
        what = f"{_FITS[tick // _FIT % 2][0]}.fit"
        stuck = self.began + (tick - tick % _FIT + _STUCK.start) * TICK
        since = stuck if phase == "stuck" else moment - 0.02
        waiting = RankActivity(what, "Allreduce", since)
        computing = RankActivity(what, None, since)
        rng = np.random.default_rng([self._seed, 2, tick])
        busy = rng.random(len(self.layout.ranks)) < (0.0 if phase == "stuck" else 0.6)
        busy[self.straggler] = True
        return tuple(computing if each else waiting for each in busy)

    def _traffic(self, seconds: float) -> Traffic:
        sent = np.floor(self._rates * seconds)
        return Traffic(sent, np.ceil(sent / np.array([2e6, 6.5e4])[:, None, None]))

    def _operations(self, tick: int) -> NDArray[np.float64]:
        numbers = np.zeros((len(OPERATIONS), len(OPERATION)))
        ranks = len(self.layout.ranks)
        for name, calls, each, seconds, waiting in (
            ("Allreduce", 40, 65_536, 0.09, 0.6),
            ("Bcast", 10, 8_192, 0.02, 0.3),
            ("Sendrecv", 6, 1 << 20, 0.03, 0.2),
            ("Allgather", 4, 262_144, 0.02, 0.4),
            ("Barrier", 2, 0, 0.01, 0.95),
            ("bcast", 1, 2_000, 0.004, 0.5),
        ):
            number = calls * tick * ranks
            numbers[OPERATIONS.index(name)] = (
                number,
                number * each,
                seconds * tick * ranks,
                seconds * waiting * tick * ranks,
            )
        return numbers

    def _record(self, tick: int) -> list[dict[str, Any]]:
        if self._phase(tick) == "idle" or (self._phase(tick) == "stuck" and tick % 8):
            return []
        number, step = divmod(tick, _FIT)
        name, loss, shift = _FITS[number % 2]
        noise = np.random.default_rng([self._seed, 3, tick]).normal(0, 0.01)
        return [
            {
                "fit": f"{self._seed}-{number}",
                "name": name,
                "time": self.began + tick * TICK,
                "step": step,
                loss: float(4.2e5 * (0.25 + np.exp(-step / 25)) * (1 + noise)),
                shift: float(np.exp(-step / 20) * (1 + 10 * noise)),
            }
        ]


def _ring(between: int) -> NDArray[np.float64]:
    """Bytes of an allreduce and of neighbors: everybody to everybody a little, to the next one much."""
    rates = np.full((between, between), 0.05)
    index = np.arange(between)
    rates[index, (index + 1) % between] += 3.0
    rates[index, (index - 1) % between] += 1.5
    np.fill_diagonal(rates, 0.0)
    return rates


def _shuffle(rng: np.random.Generator, between: int) -> NDArray[np.float64]:
    """Bytes of a shuffle: uneven, and some pairs never meet."""
    rates: NDArray[np.float64] = rng.lognormal(-2.5, 1.6, (between, between)) * (rng.random((between, between)) < 0.6)
    rates[between // 3] *= 5
    np.fill_diagonal(rates, 0.0)
    return rates


def _sizes(tick: int, ranks: int) -> NDArray[np.float64]:
    bins = np.arange(SIZES)
    shapes = {"dask": np.exp(-((bins - 22) ** 2) / 9), "mpi": np.exp(-((bins - 14) ** 2) / 5) + 0.2 * (bins == 0)}
    numbers: NDArray[np.float64] = np.floor(np.stack([shapes[kind] for kind in KINDS]) * 20 * tick * ranks)
    return numbers
