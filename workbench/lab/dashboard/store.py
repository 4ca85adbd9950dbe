"""The data of the dashboard, shared by all browsers."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench import __version__
from workbench.errors import ClusterNotFound, WorkbenchError
from workbench.lab.dashboard.format import second
from workbench.lab.dashboard.snapshot import Snapshot, without_history
from workbench.lab.dashboard.source import Source
from workbench.metrics.schema import KEPT, KINDS, NODE, RANK, TICK
from workbench.metrics.training import ALL_RECORDS_KEPT
from workbench.metrics.update import Layout, Update
from workbench.text import duration

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray


logger = logging.getLogger("workbench.lab.dashboard")

# Interval at which the matrices and activities of answers are kept, and the maximum of their bytes.
_KEEP_INTERVAL_S, _KEPT_BYTES = 10.0, 64 << 20
# Seconds without an answer after which the page says so, and between two polls of a cluster that has ended.
_SILENT_AFTER_S, _ENDED_POLL_INTERVAL_S = 3.0, 5.0


class DataStore:
    """Polls a source twice per second while a browser listens, and keeps ten minutes of the answers.

    Parameters
    ----------
    source
        The head of the cluster, or a simulation.
    now
        Returns the time in seconds, which need not agree with the clock of the head.
    every
        Seconds between two polls.

    Attributes
    ----------
    layout : Layout or None
        The ranks and nodes, once the head has answered.

    Notes
    -----
    For one event loop, with all browsers in it. When the layout changes the history is dropped, because its columns
    belong to other ranks.
    """

    def __init__(self, source: Source, now: Callable[[], float] = time.monotonic, *, every: float = TICK) -> None:
        self.source = source
        self._poll_interval = every
        self.layout: Layout | None = None
        self._now = now
        # Time of the last answer; infinite while no browser listens, since then no answer is missing.
        self._answered_at = math.inf
        self._ended = self._reason = self._unreadable = ""
        self._logged: set[tuple[str, type]] = set()
        self._listeners: dict[object, Callable[[], Any]] = {}
        self._poll_task: asyncio.Task[None] | None = None
        self._seq = 0
        self._last: Update | None = None
        self._latest: Snapshot | None = None
        self._fits: deque[dict[str, Any]] = deque(maxlen=ALL_RECORDS_KEPT)

    def listen(self, listener: Callable[[], Any]) -> Callable[[], None]:
        """Call a listener after each poll; return the function that ends that."""
        key = object()
        self._listeners[key] = listener
        if self._poll_task is None or self._poll_task.done():
            self._answered_at = self._now()  # no poll is late yet
            self._poll_task = asyncio.get_running_loop().create_task(self._poll())

        def leave() -> None:
            self._listeners.pop(key, None)
            if not self._listeners and self._poll_task is not None:
                self._poll_task.cancel()
                self._poll_task, self._answered_at = None, math.inf

        return leave

    @property
    def is_watched(self) -> bool:
        """Whether a browser listens."""
        return bool(self._listeners)

    async def refresh(self) -> None:
        """Poll once."""
        try:
            self._take(await self.source.ask(self._seq))
        except ClusterNotFound as error:
            self._ended = error.message  # the hint has commands of the place that has opened the dashboard
        except OSError as error:
            self._reason, self._unreadable = f" {error}" if isinstance(error, WorkbenchError) else "", ""
        except Exception as error:  # noqa: BLE001  (all browsers depend on this poll)
            self._log("the answer of the head cannot be read", error)
            self._unreadable = f"{type(error).__name__}: {error}"
            # A part of the answer may have been stored, so the next poll requests everything.
            self.layout, self._seq = None, 0
            self._fits.clear()
        else:
            self._answered_at, self._ended, self._reason, self._unreadable = self._now(), "", "", ""

    @property
    def trouble(self) -> str:
        """The problem with the data as text; empty without one."""
        if self._ended:
            return f"The cluster has ended: {self._ended}"
        data = f"; last data of {second(self._latest.time)}" if self._latest and len(self._latest.times) else ""
        if self._unreadable:
            return f"The answer of the head cannot be read ({self._unreadable}){data}."
        if (silent := self._now() - self._answered_at) >= _SILENT_AFTER_S:
            return f"No answer from the head for {duration(silent)}{data}.{self._reason}"
        if self._last is None:
            return "Waiting for the first answer of the head."
        if (version := self._last.state.get("version", __version__)) != __version__:
            return f"The cluster has version {version}, this dashboard has {__version__}: numbers may be missing."
        return "" if self._latest and len(self._latest.times) else "The ranks have not sent any metrics yet."

    def at(self, until: float | None) -> Snapshot | None:
        """Return the latest snapshot, or one in the buffer; None before the first answer.

        Parameters
        ----------
        until
            Seconds since the epoch by the clock of the head; None for the latest snapshot.
        """
        last = self._latest
        if last is None or until is None or until >= last.time:
            return last
        ticks = max(1, int(np.searchsorted(last.times, until, side="right")))
        end = float(last.times[ticks - 1])
        kept = [entry for entry in self._kept if entry[0] <= end + TICK / 2]
        valid_at, update = kept[-1] if kept else self._kept[0]
        return Snapshot(
            update,
            valid_at,
            last.times[:ticks],
            last.rank[:ticks],
            last.node[:ticks],
            last.core[:ticks],
            last.totals[: int(np.searchsorted(last.totals[:, 0], end + TICK / 2, side="right"))],
            [record for record in last.fits if record["time"] <= end],
        )

    async def _poll(self) -> None:
        while True:
            begin = time.monotonic()
            await self.refresh()
            for listener in list(self._listeners.values()):
                try:
                    listener()
                except Exception as error:  # noqa: BLE001  (one browser must not stop the others)
                    self._log("a page could not be updated", error)
            pause = _ENDED_POLL_INTERVAL_S if self._ended or self._unreadable else self._poll_interval
            await asyncio.sleep(max(self._poll_interval / 10, pause - (time.monotonic() - begin)))

    def _log(self, problem: str, error: Exception) -> None:
        """Log an error once, not at each poll."""
        if (problem, type(error)) not in self._logged:
            self._logged.add((problem, type(error)))
            logger.error("%s", problem, exc_info=error)

    def _take(self, update: Update) -> None:
        if self.layout is None or update.layout.number != self.layout.number:
            self._begin(update.layout)
        self._seq = update.seq
        new: tuple[NDArray[Any], ...] = (update.times, update.rank, update.node, update.core)
        for ring, rows in zip(self._rings, new, strict=True):
            ring.add(rows)
        times, rank, node, core = (ring.view for ring in self._rings)
        self._last = state = without_history(update)
        time_of_update = float(times[-1]) if len(times) else 0.0
        if len(update.times):
            self._totals.add(np.array([[time_of_update, *update.traffic.bytes.sum(axis=(1, 2))]]))
            self._keep(time_of_update, state)
        self._fits.extend(update.fits)
        self._latest = Snapshot(state, time_of_update, times, rank, node, core, self._totals.view, list(self._fits))

    def _begin(self, layout: Layout) -> None:
        rows, self.layout = round(KEPT / TICK), layout
        self._rings = (
            RingBuffer(rows, (), np.float64),
            RingBuffer(rows, (len(layout.ranks), len(RANK)), np.float32),
            RingBuffer(rows, (len(layout.nodes), len(NODE)), np.float32),
            RingBuffer(rows, (sum(layout.cores),), np.uint8),
        )
        self._totals = RingBuffer(rows, (1 + len(KINDS),), np.float64)
        self._kept: deque[tuple[float, Update]] = deque()

    def _keep(self, time_of_update: float, state: Update) -> None:
        if self._kept and time_of_update - self._kept[-1][0] < _KEEP_INTERVAL_S:
            return
        self._kept.append((time_of_update, state))
        matrices = (state.traffic, state.recent)
        nbytes = sum(traffic.bytes.nbytes + traffic.messages.nbytes for traffic in matrices)
        while time_of_update - self._kept[0][0] > KEPT or len(self._kept) > max(1, _KEPT_BYTES // max(1, nbytes)):
            self._kept.popleft()


class RingBuffer:
    """Keeps the last rows of one shape, contiguous in memory.

    Notes
    -----
    The buffer has a quarter more rows, so its rows move to the front only once in that many rows.
    """

    def __init__(self, rows: int, shape: tuple[int, ...], dtype: DTypeLike) -> None:
        self._rows = rows
        self._kept = np.empty((rows + rows // 4 + 1, *shape), dtype)
        self._begin = self._end = 0

    @property
    def view(self) -> NDArray[Any]:
        """The rows, oldest first; valid until rows are added."""
        return self._kept[self._begin : self._end]

    def add(self, rows: NDArray[Any]) -> None:
        """Add rows, the oldest first."""
        rows = rows[-self._rows :]
        if self._end + len(rows) > len(self._kept):
            left = self.view[-(self._rows - len(rows)) :] if len(rows) < self._rows else self.view[:0]
            self._kept[: len(left)] = left.copy()
            self._begin, self._end = 0, len(left)
        self._kept[self._end : self._end + len(rows)] = rows
        self._end += len(rows)
        self._begin = max(self._begin, self._end - self._rows)
