"""The answer of the head to a request for metrics: what is new, the state now, and the cost of each call and cell."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.metrics.schema import KINDS, NODE, OPERATION, RANK
from workbench.mpi.counters import OPERATIONS, SIZES

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class SharedCores:
    """Cores of a node, and the ranks that may use no other core, of which there are more.

    Attributes
    ----------
    node : int
        An index of `Layout.nodes`.
    cores : int
        Number of the cores.
    ranks : tuple of int
        Indices of `Layout.ranks`.
    """

    node: int
    cores: int
    ranks: tuple[int, ...]


def shared_cores(nodes: Sequence[int], cpus: Sequence[Iterable[int]]) -> tuple[SharedCores, ...]:
    """Return the shared cores among the cores of each rank, and among those of all ranks of a node together.

    Parameters
    ----------
    nodes
        The node of each rank.
    cpus
        Numbers of the cores that each rank may use.

    Examples
    --------
    >>> shared_cores([0, 0, 0], [[0], [0], [0, 1, 2, 3]])
    (SharedCores(node=0, cores=1, ranks=(0, 1)),)
    """
    masks: dict[int, dict[frozenset[int], list[int]]] = {}
    for rank, (node, numbers) in enumerate(zip(nodes, cpus, strict=True)):
        masks.setdefault(node, {}).setdefault(frozenset(numbers), []).append(rank)
    shared = []
    for node, ranks_of in masks.items():
        for cores in dict.fromkeys([frozenset().union(*ranks_of), *ranks_of]):
            ranks = sorted(rank for mask, users in ranks_of.items() if mask <= cores for rank in users)
            if len(ranks) > len(cores):
                shared.append(SharedCores(node, len(cores), tuple(ranks)))
    return tuple(shared)


@dataclass(frozen=True)
class RankPlace:
    """The number and the node (an index of `Layout.nodes`) of a rank."""

    rank: int
    node: int


@dataclass(frozen=True)
class Layout:
    """The ranks and nodes of the columns of arrays.

    Attributes
    ----------
    number : int
        Changes with the ranks or nodes, because arrays then have other columns, and when the history begins anew.
    ranks : tuple of RankPlace
        In order of rank.
    nodes : tuple of str
        Names of hosts.
    cores : tuple of int
        Cores of each node.
    shared_cores : tuple of SharedCores
        Cores for which there are too many ranks.
    """

    number: int
    ranks: tuple[RankPlace, ...]
    nodes: tuple[str, ...]
    cores: tuple[int, ...]
    shared_cores: tuple[SharedCores, ...] = ()


NO_SAMPLE = 255
"""`Update.core` of a node without a sample."""

LOST = "(lost)"
"""`RankActivity.what` of a lost rank; no function or cell has this name."""


@dataclass(frozen=True)
class RankActivity:
    """The current activity of a rank.

    Attributes
    ----------
    what : str
        The running function or cell, ``"task "`` and the name of a Dask task, `LOST`, or ``""`` for an idle rank.
    operation : str or None
        The MPI operation in progress, for example ``"Allreduce"``.
    since : float
        Begin of that operation or, without one, of the activity; seconds since the epoch.
    silent : float
        Seconds for which the rank has sent no samples; 0 normally.
    """

    what: str
    operation: str | None
    since: float
    silent: float = 0.0

    @property
    def is_lost(self) -> bool:
        """Whether the rank was lost, at the time `since`."""
        return self.what == LOST


@dataclass(frozen=True)
class Traffic:
    """Bytes and messages from places to places.

    Attributes
    ----------
    bytes, messages : ndarray of float64, shape (len(KINDS), k, k)
        ``[kind, source, target]``; k is the number of ranks, or of nodes if there are more than 64 ranks.
    """

    bytes: NDArray[np.float64]
    messages: NDArray[np.float64]


@dataclass(frozen=True)
class Update:
    """All that is new since the last request, and the state now.

    Attributes
    ----------
    seq : int
        The argument of the next request.
    layout : Layout
    times : ndarray of float64, shape (f,)
        Ends of the new ticks, oldest first, in seconds since the epoch by the clock of the head.
    rank : ndarray of float32, shape (f, ranks, len(RANK))
        NaN without a sample of the rank.
    node : ndarray of float32, shape (f, nodes, len(NODE))
    core : ndarray of uint8, shape (f, sum of cores)
        Percent, or `NO_SAMPLE`; the cores of node 0 first.
    now : tuple of RankActivity
        For each rank.
    by : {"rank", "node"}
        Kind of the places of `traffic` and `recent`.
    traffic, recent : Traffic
        Since the start, and in the last ten seconds.
    operations : ndarray of float64, shape (len(OPERATIONS), len(OPERATION))
        Since the start, of all ranks together.
    sizes : ndarray of float64, shape (len(KINDS), SIZES)
        Messages by size since the start, of all ranks together.
    fits : list of dict
        New records of fits and `workbench.report`: ``fit`` (identity), ``name``, ``time`` (seconds since the epoch),
        ``step``, and numbers by name; oldest first.
    calls : list of dict
        SPMD calls and cells that have ended since, on one rank at least, see `CallCost`.
    state : mapping
        ``name``, ``state``, ``message``, ``ranks`` (wanted), ``present``, ``ends`` (seconds since the epoch; None
        without a walltime), ``version`` (of workbench).
    """

    seq: int
    layout: Layout
    times: NDArray[np.float64]
    rank: NDArray[np.float32]
    node: NDArray[np.float32]
    core: NDArray[np.uint8]
    now: tuple[RankActivity, ...]
    by: str
    traffic: Traffic
    recent: Traffic
    operations: NDArray[np.float64]
    sizes: NDArray[np.float64]
    fits: list[dict[str, Any]] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    state: Mapping[str, Any] = field(default_factory=dict)

    def pack(self) -> dict[str, Any]:
        """Return the update as lists, dicts, numbers, text and bytes."""
        layout = self.layout
        return {
            "seq": self.seq,
            "layout": {
                "number": layout.number,
                "ranks": [(place.rank, place.node) for place in layout.ranks],
                "nodes": list(layout.nodes),
                "cores": list(layout.cores),
                "shared_cores": [(shared.node, shared.cores, shared.ranks) for shared in layout.shared_cores],
            },
            "times": self.times.tobytes(),
            "rank": self.rank.tobytes(),
            "node": self.node.tobytes(),
            "core": self.core.tobytes(),
            "now": [(doing.what, doing.operation, doing.since, doing.silent) for doing in self.now],
            "by": self.by,
            "traffic": (self.traffic.bytes.tobytes(), self.traffic.messages.tobytes()),
            "recent": (self.recent.bytes.tobytes(), self.recent.messages.tobytes()),
            "operations": self.operations.tobytes(),
            "sizes": self.sizes.tobytes(),
            "fits": self.fits,
            "calls": self.calls,
            "state": dict(self.state),
        }

    @classmethod
    def unpack(cls, packed: Mapping[str, Any]) -> Update:
        """Return the update that `pack` has packed."""
        fields = packed["layout"]
        places = tuple(RankPlace(*place) for place in fields["ranks"])
        shared = tuple(SharedCores(node, cores, tuple(ranks)) for node, cores, ranks in fields["shared_cores"])
        layout = Layout(fields["number"], places, tuple(fields["nodes"]), tuple(fields["cores"]), shared)
        ranks, nodes = len(layout.ranks), len(layout.nodes)
        between = ranks if packed["by"] == "rank" else nodes

        def traffic(matrices: tuple[bytes, bytes]) -> Traffic:
            return Traffic(*(_array(matrix, np.float64, len(KINDS), between, between) for matrix in matrices))

        times = _array(packed["times"], np.float64, -1)
        return cls(
            seq=packed["seq"],
            layout=layout,
            times=times,
            rank=_array(packed["rank"], np.float32, len(times), ranks, len(RANK)),
            node=_array(packed["node"], np.float32, len(times), nodes, len(NODE)),
            core=_array(packed["core"], np.uint8, len(times), sum(layout.cores)),
            now=tuple(RankActivity(*fields) for fields in packed["now"]),
            by=packed["by"],
            traffic=traffic(packed["traffic"]),
            recent=traffic(packed["recent"]),
            operations=_array(packed["operations"], np.float64, len(OPERATIONS), len(OPERATION)),
            sizes=_array(packed["sizes"], np.float64, len(KINDS), SIZES),
            fits=list(packed["fits"]),
            calls=list(packed["calls"]),
            state=packed["state"],
        )


def percents(core: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return numbers of `Update.core` as percent; NaN without a sample."""
    return np.where(core == NO_SAMPLE, np.float32(np.nan), core.astype(np.float32))


def _array(packed: bytes, dtype: Any, *shape: int) -> NDArray[Any]:
    return np.frombuffer(packed, dtype=dtype).reshape(shape)


_CALLS_KEPT = 500


@dataclass
class CallCost:
    """An SPMD call or a cell that has ended on at least one rank."""

    call: str
    """Identity."""
    cell: int | None
    """Number of the notebook cell, for example 12 of ``In [12]``; None for a call from outside IPython."""
    what: str
    """Name of the function or the fit, or ``"a cell"``."""
    begin: float
    """Begin on the first rank, in seconds since the epoch; ``end``: end on the last rank."""
    end: float
    ranks: int = 0
    """Ranks on which the call has ended."""
    seconds: float = 0.0
    """Sum over all ranks, like the numbers below."""
    mpi: float = 0.0
    """Seconds in MPI, waiting included."""
    operations: float = 0.0
    """Number of MPI operations."""
    bytes: float = 0.0
    """Bytes sent over MPI."""


class CallCosts:
    """The latest calls of a cluster."""

    def __init__(self) -> None:
        self._cells: OrderedDict[str, int | None] = OrderedDict()
        self._calls: OrderedDict[str, tuple[int, CallCost]] = OrderedDict()

    def began(self, call: str, cell: int | None) -> None:
        """Record the notebook cell that requested a call."""
        self._cells[call] = cell
        if len(self._cells) > _CALLS_KEPT:
            self._cells.popitem(last=False)

    def ended(self, seq: int, call: Mapping[str, Any]) -> None:
        """Add the fields of a `workbench.metrics.shared_slots.FinishedCall` of a rank to the tick `seq`."""
        name, begin, end = call["call"], call["begin"], call["end"]
        _, cost = self._calls.get(name, (0, None))
        if cost is None:
            cost = CallCost(name, self._cells.get(name), call["what"], begin, end)
        cost.begin, cost.end = min(cost.begin, begin), max(cost.end, end)
        cost.ranks += 1
        cost.seconds += end - begin
        for column in ("mpi", "operations", "bytes"):
            setattr(cost, column, getattr(cost, column) + call[column])
        self._calls[name] = seq, cost
        self._calls.move_to_end(name)
        if len(self._calls) > _CALLS_KEPT:
            self._calls.popitem(last=False)

    def since(self, since: int, until: int) -> list[dict[str, Any]]:
        """Return the calls that changed after the tick `since`, up to the tick `until`."""
        return [asdict(cost) for seq, cost in self._calls.values() if since < seq <= until]
