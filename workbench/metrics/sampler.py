"""The thread that samples this rank twice per second, and the clock of the head.

The method is that of Cristian (Probabilistic clock synchronization, Distributed Computing 3, 1989): the answer with the
shortest round trip is the most accurate one; its error is at most half of the round trip.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import psutil
from dask.utils import key_split

from workbench import comm
from workbench.gpu.devices import GpuMeter
from workbench.host import node_dirs
from workbench.metrics import system
from workbench.metrics.activity import Activity, Doing
from workbench.metrics.node_reporter import NodeReporter
from workbench.metrics.schema import BY_NODE, KINDS, TICK
from workbench.metrics.shared_slots import RankSample, SharedSlots
from workbench.mpi.counters import WAITS

if TYPE_CHECKING:
    from distributed import Worker

    from workbench.mpi.context import RankContext


_POLL_INTERVAL_S, _REQUESTS_PER_POLL, _ANSWER_TIMEOUT_S = 30.0, 5, 5.0
# Seconds between two checks whether this rank has begun to send the messages of its node.
_DEMAND_POLL_INTERVAL_S = 1.0


class HeadClock:
    """Requests the time of the head regularly, once `ahead` is in use: only one rank of a node needs the offset.

    Parameters
    ----------
    worker
        The worker that is connected to the head.
    is_local
        Whether the head runs on this node, by the same clock.
    """

    def __init__(self, worker: Worker, *, is_local: bool) -> None:
        self._worker = worker
        self._ahead: float | None = 0.0 if is_local else None
        self._wanted = False

    def ahead(self) -> float | None:
        """Return the seconds by which the head's clock is ahead, None until they are known; for any thread."""
        self._wanted = True
        return self._ahead

    async def watch(self) -> None:
        """Update `ahead` while it is in use, until the end of the event loop."""
        while True:
            while not self._wanted:  # noqa: ASYNC110  (a thread sets the flag)
                await asyncio.sleep(_DEMAND_POLL_INTERVAL_S)
            self._wanted = False
            # The head may be busy, or be restarting the world.
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                    self._ahead = await self._poll()
            await asyncio.sleep(_POLL_INTERVAL_S)

    async def _poll(self) -> float:
        best = float("inf"), 0.0
        for _ in range(_REQUESTS_PER_POLL):
            sent_at = time.time()
            head_time = await self._worker.scheduler.workbench_time()
            received_at = time.time()
            best = min(best, (received_at - sent_at, head_time - (sent_at + received_at) / 2))
        return best[1]


logger = logging.getLogger("workbench.metrics")

# Ticks for which synchronizations stay in the slot, because the reader may miss a tick.
_SYNCHRONIZATION_TICKS_KEPT = 4
_NAME_LENGTH = 100
# Seconds between the tick and the message: time for all ranks of the node to write their samples.
_WRITE_TIME_S = 0.05


class RankSampler:
    """Writes a sample of this rank to its shared slot twice per second, and runs the reporter of the node."""

    def __init__(
        self,
        context: RankContext,
        slots: SharedSlots,
        activity: Activity,
        reporter: NodeReporter,
    ) -> None:
        self._context, self._slots, self._activity, self._reporter = context, slots, activity, reporter
        self._process, self._gpus = psutil.Process(), GpuMeter()
        self._before = system.process_usage(self._process)
        self._counted = activity.busy.seconds, (0.0, 0.0)
        self._idle = time.monotonic()
        self._synchronizations: deque[list[Any]] = deque(maxlen=_SYNCHRONIZATION_TICKS_KEPT)
        self._ended, self._has_logged = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; the last sample stays in the slot."""
        self._ended.set()

    def _run(self) -> None:
        # All ranks sample at the same times, so that their samples are comparable.
        while not self._ended.wait(TICK - time.time() % TICK):
            if not self._activity.enabled:
                continue
            try:
                self._slots.write(self._context.rank, self._sample())
                if not self._ended.wait(_WRITE_TIME_S):
                    self._reporter.tick()
            except Exception:
                # For example no free file or memory: the next tick may succeed, and the rank works without metrics.
                if not self._has_logged:
                    logger.exception("metrics could not be sent; this is logged once")
                self._has_logged = True
        self._slots.close()

    def _sample(self) -> RankSample:
        before, now = self._before, system.process_usage(self._process)
        self._before = now
        passed = max(now.time - before.time, 1e-3)
        activity = self._activity
        counters, doing, tasks = activity.meter.snapshot(), activity.now, dict(activity.busy.tasks)
        self._synchronizations.append(counters.synchronizations)
        name, operation, since = _current_activity(doing, tasks) or ("", None, self._idle)
        if name:
            self._idle = now.time
        inside, stuck = activity.inside, min(now.time - since, passed) if operation else 0.0
        finished = [(each, seconds) for each, (_, _, seconds) in counters.operations.items()]
        busy, in_mpi = activity.busy.seconds, _by_kind([*finished, *inside.items()])
        (busy_before, in_mpi_before), self._counted = self._counted, (busy, in_mpi)
        # The totals contain the operation in progress, if it is counted, and its part of this tick is `stuck`.
        in_progress = _by_kind([(operation, stuck)] if operation in inside else [])
        waits, closed = (
            max(0.0, min(total - earlier - current, passed - stuck))
            for total, earlier, current in zip(in_mpi, in_mpi_before, in_progress, strict=True)
        )
        return RankSample(
            time=now.time,
            pid=os.getpid(),
            values={
                **now.since(before),
                **self._gpus.sample(),
                "tasks": float(len(tasks)),
                "busy": min((busy - busy_before) / passed, 1.0),
                "stuck": stuck / passed,
                "waits": waits / passed,
                "closed": closed / passed,
            },
            what=name[:_NAME_LENGTH],
            operation=operation,
            since=since,
            sent={
                KINDS.index("dask"): self._by_place(by_transport()),
                KINDS.index("mpi"): self._by_place(counters.sent),
            },
            sizes=(comm.sizes(), counters.sizes),
            operations=dict(counters.operations),
            ended=list(activity.ended),
            synchronizations=list(itertools.chain.from_iterable(self._synchronizations)),
        )

    def _by_place(self, sent: Mapping[int, list[int]]) -> dict[int, list[int]]:
        """Return counts by rank as counts by place: with more than `BY_NODE` ranks, by the first rank of each node."""
        if self._context.size <= BY_NODE:
            return dict(sent)
        sums: dict[int, list[int]] = {}
        for rank, (nbytes, messages) in sent.items():
            total = sums.setdefault(self._context.nodes[rank], [0, 0])
            total[0] += nbytes
            total[1] += messages
        return sums


@contextlib.contextmanager
def sample_rank(
    worker: Worker, context: RankContext, cluster: str, start: str, activity: Activity, *, head_is_here: bool
) -> Iterator[None]:
    """Send samples of this rank to the head until the end of the block; for the event loop of its worker.

    Parameters
    ----------
    cluster
        Identity of the cluster.
    start
        Name of this start of the world, by which the head ignores samples of an earlier start.
    head_is_here
        Whether the head runs on this node, by the same clock.
    """
    try:
        slots = SharedSlots(node_dirs.shared_memory(cluster) / f"world-{context.world}" / f"metrics-{start[:8]}")
    except OSError:
        logger.exception("this rank has no metrics")
        yield
        return
    clock, clock_task = HeadClock(worker, is_local=head_is_here), None
    if not head_is_here:
        clock_task = asyncio.ensure_future(clock.watch())

    def send(message: dict[str, Any]) -> None:
        # If the head has died, this process is about to end, too.
        with contextlib.suppress(OSError):
            worker.batched_stream.send(message)

    def report(message: dict[str, Any]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            worker.loop.add_callback(send, message)

    sampler = RankSampler(context, slots, activity, NodeReporter(context, slots, start, report, clock.ahead))
    sampler.start()
    try:
        yield
    finally:
        sampler.stop()
        if clock_task is not None:
            clock_task.cancel()


def _current_activity(doing: Doing | None, tasks: Mapping[Any, float]) -> tuple[str, str | None, float] | None:
    """Return the name of the running call or task, the MPI operation in progress, and its begin; None if idle."""
    if doing is not None:
        name, state, started = doing
        operation, since = state.operation, state.since
        return name, operation, max(since, started)
    if tasks:
        key, since = next(iter(tasks.items()))
        return f"task {key_split(key)}", None, since
    return None


def _by_kind(seconds_in: Iterable[tuple[str, float]]) -> tuple[float, float]:
    """Return the seconds in operations that only wait, and the seconds in other operations."""
    waits = others = 0.0
    for name, seconds in seconds_in:
        if name in WAITS:
            waits += seconds
        else:
            others += seconds
    return waits, others


def by_transport() -> dict[int, list[int]]:
    """Return the bytes and messages that Dask's transport has sent, by rank."""
    sent: dict[int, list[int]] = {}
    for row in comm.traffic():
        if isinstance(row["peer"], int):
            counts = sent.setdefault(row["peer"], [0, 0])
            counts[0] += row["sent_bytes"]
            # Frames sent over MPI belong to a message whose header was counted on the socket.
            counts[1] += row["sent_messages"] if row["way"] == "socket" else 0
    return sent
