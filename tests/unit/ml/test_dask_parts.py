"""Calls of the parts on Dask workers, also of groups, and the errors for a lost head; fits are in tests/cluster."""

from __future__ import annotations

import asyncio
import logging
import sys
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import dask.array as da
import numpy as np
import pytest
from distributed.comm import CommClosedError
from distributed.core import ConnectionPool, PooledRPCCall
from sklearn.exceptions import ConvergenceWarning
from support.processes import DEADLINE, until
from support.raised import raises

from workbench import place
from workbench.errors import HeadUnreachable
from workbench.metrics import training
from workbench.ml import KMeans
from workbench.ml.checks import Checks
from workbench.ml.engine import dask_parts, fitting, select
from workbench.ml.engine.dask_parts import ActorParts, group_size
from workbench.placement.place import PlacedBlocks

ADDRESS = "tcp://127.0.0.1:9"


@pytest.fixture
async def parts(monkeypatch):
    """Parts whose client is closing, and `run`, which returns the results of its workers."""
    loop = asyncio.get_running_loop()
    pool = ConnectionPool()
    await pool.close()
    scheduler = PooledRPCCall(ADDRESS, pool)

    async def run(function, *args, workers):
        return await scheduler.broadcast(msg={}, workers=workers)

    def sync(function, *args):
        return asyncio.run_coroutine_threadsafe(function(*args), loop).result(DEADLINE)

    client = SimpleNamespace(scheduler=scheduler, status="closing", run=run, sync=sync, as_current=nullcontext)
    monkeypatch.setattr(dask_parts.pinning, "submit", lambda *_, **__: [])
    block = SimpleNamespace(address=ADDRESS), 0, ()
    parts = await asyncio.to_thread(ActorParts, client, Rows, Checks("Rows"), [block])
    return SimpleNamespace(client=client, each=partial(asyncio.to_thread, parts.each))


async def test_a_client_that_is_closing_has_lost_its_head(parts):
    with pytest.raises(HeadUnreachable):
        await parts.each("step")


async def test_the_head_is_gone_for_a_client_that_closes_while_the_reason_is_sought(parts):
    async def run(function, *args, workers):
        raise CommClosedError("the worker is lost")

    parts.client.status, parts.client.run = "running", run
    with pytest.raises(HeadUnreachable):
        await parts.each("step")


async def test_an_error_of_a_part_is_raised_as_it_is(parts):
    async def run(function, *args, workers):
        raise RuntimeError("of a part")

    parts.client.status, parts.client.run = "running", run
    with raises(RuntimeError, args=("of a part",)):
        await parts.each("step")


class Rows:
    """A part that returns its rows."""

    def __init__(self, X, y, weight, start):
        self.rows = X[:, 0].tolist()

    def numbers(self, factor):
        return [factor * row for row in self.rows]

    def total(self):
        return float(sum(self.rows))

    def fails_from(self, row):
        if self.rows[0] >= row:
            raise LookupError(f"block of row {self.rows[0]:.0f}")
        return 0.0


def join(left, right):
    return left + right


@pytest.fixture
def actors(client, request, monkeypatch):
    """Parts on four workers, in groups if these are more than `request.param`."""
    monkeypatch.setattr(dask_parts, "_MAX_DIRECT", request.param)
    X = place(da.from_array(np.arange(10.0)[:, None], chunks=3))
    of_x = PlacedBlocks.of(X, client)
    columns = map(of_x.arguments, (X, None, None))
    blocks = list(zip(of_x.pins, [0, 3, 6, 8], zip(*columns, strict=True), strict=True))
    parts = ActorParts(client, Rows, Checks("Rows"), blocks)
    yield parts
    parts.end()


@pytest.mark.parametrize(("actors", "asked"), [(8, 4), (3, 2)], indirect=["actors"])
def test_the_client_asks_the_first_worker_of_each_group(actors, client, asked, monkeypatch):
    run, calls = client.run, []
    monkeypatch.setattr(client, "run", lambda *args, workers: calls.append(len(workers)) or run(*args, workers=workers))

    assert actors.fold(join, "numbers", 2.0) == [2.0 * row for row in range(10)]
    assert actors.sum("total") == 45.0
    assert calls == [asked, asked]
    assert actors.each("numbers", 1.0) == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0], [6.0, 7.0], [8.0, 9.0]]


@pytest.mark.parametrize("actors", [8, 3], indirect=True)
def test_the_error_of_the_earliest_block_is_raised(actors):
    for row, block in ((0, 0), (5, 6), (7, 8)):
        with raises(LookupError, args=(f"block of row {block}",)):
            actors.sum("fails_from", row)
    assert actors.sum("total") == 45.0


@pytest.mark.parametrize(("kind", "serves"), [("HeadScheduler", True), ("Scheduler", False)])
def test_the_kind_of_a_scheduler_is_requested_once(kind, serves):
    class Connected:
        scheduler = SimpleNamespace(identity="identity")
        requests = 0

        def sync(self, request, **options):
            self.requests += 1
            return {"type": kind}

    client = Connected()
    assert [select.serves_calls(client) for _ in range(2)] == [serves] * 2
    assert client.requests == 1


def test_the_events_of_a_fit_arrive(client):
    events = []
    client.subscribe_topic(training.TOPIC, events.append)
    X = np.random.default_rng(0).normal(size=(40, 2))
    with pytest.warns(ConvergenceWarning):
        KMeans(4, init=X[:4], max_iter=2, tol=0).fit(place(X))

    def iterations():
        return [[record["iteration"] for record in event["records"]] for _, event in events]

    until("the event of the fit has arrived", lambda: [1, 2] in iterations())


@pytest.mark.parametrize("error", [CommClosedError("the head is lost"), AttributeError("the client is closed")])
def test_a_fit_does_not_need_its_events(client, monkeypatch, error):
    events = []

    def log_event(*event):
        events.append(event)
        raise error

    monkeypatch.setattr(client, "log_event", log_event)
    X = np.random.default_rng(0).normal(size=(40, 2))

    assert KMeans(2, init=X[:2]).fit(place(X)).engine_ == "dask"
    until("the event was sent", lambda: events)


@pytest.mark.parametrize(("workers", "size"), [(1, 1), (8, 1), (9, 3), (64, 8), (100, 10)])
def test_groups_have_as_many_workers_as_there_are_groups(workers, size):
    assert group_size(workers) == size


@pytest.mark.parametrize("actors", [8], indirect=True)
@pytest.mark.usefixtures("actors")
def test_messages_of_steps_alone_are_filtered():
    record = logging.LogRecord("distributed.worker", logging.INFO, "", 1, "%s", (dask_parts.ask_part.__name__,), None)
    other = logging.LogRecord("distributed.worker", logging.ERROR, "", 1, "%s", (["key"],), None)
    logger = logging.getLogger("distributed.worker")
    assert [bool(logger.filter(each)) for each in (record, other)] == [False, True]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_thread_pools_of_the_notebook_are_searched_again_only_after_an_import(client, monkeypatch):
    searches, search = [], fitting.ThreadpoolController
    monkeypatch.setattr(fitting, "ThreadpoolController", lambda: searches.append(1) or search())
    X = place(da.from_array(np.random.default_rng(0).normal(size=(40, 2)), chunks=(20, 2)))

    def fit():
        KMeans(2, init=np.zeros((2, 2)), max_iter=1).fit(X)
        return len(searches)

    fit()  # imports what a fit needs
    before = fit()
    assert fit() == before
    monkeypatch.setitem(sys.modules, "an import", None)
    assert [fit(), fit()] == [before + 1] * 2
