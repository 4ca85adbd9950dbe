"""The thread that tells twice a second what this rank does, also while the rank is in MPI or in a long task."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import psutil
from dask.utils import key_split

from workbench import comm
from workbench.files import node_dirs
from workbench.metrics import system
from workbench.metrics.activity import Activity, Doing
from workbench.metrics.clock_offset import HeadClock
from workbench.metrics.node_reporter import NodeReport
from workbench.metrics.rank_sample import Told
from workbench.metrics.schema import BY_NODE, KINDS, TICK
from workbench.metrics.shared_slots import Board
from workbench.mpi.counters import Counters
from workbench.mpi.operation_names import WAITS

if TYPE_CHECKING:
    from distributed import Worker

    from workbench.mpi.context import RankContext

logger = logging.getLogger("workbench.metrics")

# Ticks for which meetings stay on the board: who reads it may miss one.
_KEPT = 4
# Letters of a name that are told.
_LETTERS = 100
# Seconds for all ranks of the node to write.
_WRITING = 0.05


class Metering:
    """Looks at this rank twice a second, writes what it sees on the board of the node, and has the node report.

    Parameters
    ----------
    context
        The rank.
    board
        That of this node.
    activity
        What is counted here, and runs.
    report
        Sends the message of the node to the head; called in this thread.
    """

    def __init__(
        self,
        context: RankContext,
        board: Board,
        activity: Activity,
        report: NodeReport,
    ) -> None:
        self._context, self._board, self._activity, self._report = context, board, activity, report
        self._process = psutil.Process()
        self._before = system.process(self._process)
        self._counted = (activity.busy.seconds, 0.0, 0.0)
        self._idle = time.monotonic()
        self._meetings: deque[list[Any]] = deque(maxlen=_KEPT)
        self._ended, self._complained = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End; what the rank has told stays on the board."""
        self._ended.set()

    def _run(self) -> None:
        # All ranks look at the same moments, so that what they tell fits together.
        while not self._ended.wait(TICK - time.time() % TICK):
            if not self._activity.enabled:
                continue
            try:
                self._board.write(self._context.rank, self._look())
                if not self._ended.wait(_WRITING):
                    self._report.tick()
            except Exception:
                # No file left, or no memory: the next tick may go better, and the rank lives on without it.
                if not self._complained:
                    logger.exception("metrics could not be told; this is said once")
                self._complained = True
        self._board.close()

    def _look(self) -> Told:
        before, now = self._before, system.process(self._process)
        self._before = now
        passed = max(now.time - before.time, 1e-3)
        activity = self._activity
        counters, doing, tasks = activity.meter.snapshot(), activity.now, dict(activity.busy.tasks)
        self._meetings.append(counters.meetings)
        what, operation, since = _words(doing, tasks) or ("", None, self._idle)
        if what:
            self._idle = now.time
        busy, waits, closed = activity.busy.seconds, *_in_mpi(counters)
        counted, self._counted = self._counted, (busy, waits, closed)
        stuck = min(now.time - since, passed) if operation else 0.0
        # Of an operation that has ended, what it took before this tick was told as `stuck` then.
        ended = max(0.0, min(waits - counted[1], passed - stuck)), max(0.0, min(closed - counted[2], passed - stuck))
        return Told(
            time=now.time,
            pid=os.getpid(),
            values={
                **now.since(before),
                "tasks": float(len(tasks)),
                "busy": min((busy - counted[0]) / passed, 1.0),
                "stuck": stuck / passed,
                "waits": ended[0] / passed,
                "closed": ended[1] / passed,
            },
            what=what[:_LETTERS],
            operation=operation,
            since=since,
            sent={
                KINDS.index("dask"): self._by_place(by_transport()),
                KINDS.index("mpi"): self._by_place(counters.sent),
            },
            sizes=(comm.sizes(), counters.sizes),
            operations=dict(counters.operations),
            ended=list(activity.ended),
            meetings=[met for several in self._meetings for met in several],
        )

    def _by_place(self, sent: Mapping[int, list[int]]) -> dict[int, list[int]]:
        """Return counts by rank as those by what the matrix is of: above some ranks, the first rank of each node."""
        if self._context.size <= BY_NODE:
            return dict(sent)
        sums: dict[int, list[int]] = {}
        for rank, (nbytes, messages) in sent.items():
            total = sums.setdefault(self._context.nodes[rank], [0, 0])
            total[0] += nbytes
            total[1] += messages
        return sums


@contextlib.contextmanager
def metering(
    worker: Worker, context: RankContext, cluster: str, start: str, activity: Activity, *, head_is_here: bool
) -> Iterator[None]:
    """Tell the head what this rank does, to the end of the block. For the event loop of its worker.

    Parameters
    ----------
    cluster
        Identity of the cluster.
    start
        Name of this start of the world: what an earlier one has left on the board is not this one's.
    head_is_here
        Whether the head runs on this node, and so by the same clock.
    """
    try:
        board = Board(node_dirs.shared_memory(cluster) / f"world-{context.world}" / f"metrics-{start[:8]}")
    except OSError:
        logger.exception("there are no metrics of this rank")
        yield
        return
    clock, asking = HeadClock(worker, is_local=head_is_here), None
    if not head_is_here:
        asking = asyncio.ensure_future(clock.watch())

    def send(message: dict[str, Any]) -> None:
        # Its head may be gone: then this process is about to end, too.
        with contextlib.suppress(OSError):
            worker.batched_stream.send(message)

    def report(message: dict[str, Any]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            worker.loop.add_callback(send, message)

    its = Metering(context, board, activity, NodeReport(context, board, start, report, clock.ahead))
    its.start()
    try:
        yield
    finally:
        its.stop()
        if asking is not None:
            asking.cancel()


def _words(doing: Doing | None, tasks: Mapping[Any, float]) -> tuple[str, str | None, float] | None:
    """Return what the rank does, the operation of MPI that it is in, and since when; None if it is idle."""
    if doing is not None:
        what, watch, started = doing
        operation, since = watch.operation, watch.since
        return what, operation, max(since, started)
    if tasks:
        key, since = next(iter(tasks.items()))
        return f"task {key_split(key)}", None, since
    return None


def _in_mpi(counters: Counters) -> tuple[float, float]:
    """Return the seconds in operations that only wait, and those in others."""
    waits = others = 0.0
    for name, (_, _, seconds) in counters.operations.items():
        if name in WAITS:
            waits += seconds
        else:
            others += seconds
    return waits, others


def by_transport() -> dict[int, list[int]]:
    """Return bytes and messages that Dask's transport has sent, by rank."""
    sent: dict[int, list[int]] = {}
    for row in comm.traffic():
        if isinstance(row["peer"], int):
            counts = sent.setdefault(row["peer"], [0, 0])
            counts[0] += row["sent_bytes"]
            # frames by MPI belong to a message whose header goes by the socket
            counts[1] += row["sent_messages"] if row["way"] == "socket" else 0
    return sent
