"""The figures of `make bench-metrics`, and what it simulates."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
from contextlib import asynccontextmanager
from types import SimpleNamespace

import numpy as np
import pytest
from support.patience import DEADLINE

from benchmarks import metrics, simulated_nodes, watching
from workbench.errors import InvalidRequest, WorkbenchError
from workbench.metrics.store import Store


def row(what, arm, value):
    return {"what": what, "arm": arm, "value": value, "unit": ""}


def test_the_figures_are_the_worst_size_and_the_median_fit():
    rows = [
        row(f"call of {size} B", arm, value) for size in metrics.SIZES for arm, value in (("on", 5.0), ("off", 4.5))
    ]
    rows[2]["value"] = 6.0  # of the second size, with metrics
    rows += [row("K-means", arm, value) for arm, value in (("on", 1.0), ("off", 2.0), ("on", 3.0), ("off", 2.0))]
    rows += [row("K-means", arm, value) for arm, value in (("on", 20.2), ("off", 20.0))]  # the machine was slow
    rows += [row("head", "on", 3.0), row("dashboard", "on", 4.0)]
    summary = metrics.summarize(rows)
    assert summary["call_us"] == 1.5
    assert [summary[f"fit_ratio{end}"] for end in ("", "_low", "_high")] == [pytest.approx(1.01), 0.5, 1.5]
    assert (summary["head_cpu_percent"], summary["panel_cpu_percent"]) == (3.0, 4.0)
    assert summary["call_us_target"] == 1.0


@asynccontextmanager
async def without_chromium():
    yield SimpleNamespace(chromium=SimpleNamespace(executable_path="/nowhere/chrome"))


@pytest.mark.parametrize(
    ("playwright", "words"),
    [
        (None, r"by Playwright, which is not installed: pip install 'mpi-workbench\[bench\]'"),
        (
            SimpleNamespace(async_playwright=without_chromium),
            "Chromium, which is not installed: run playwright install",
        ),
    ],
    ids=["no playwright", "no chromium"],
)
def test_without_a_browser_the_bench_says_so_before_anything_is_started(monkeypatch, playwright, words):
    monkeypatch.setitem(sys.modules, "playwright.async_api", playwright)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("workbench.cluster.MPICluster", lambda *_, **__: pytest.fail("a cluster was started"))
    parser = argparse.ArgumentParser()
    metrics.add_options(parser)

    with pytest.raises(InvalidRequest, match=words):
        metrics.run(parser.parse_args([]))


def test_simulated_nodes_tell_what_a_head_takes():
    store = Store()
    for rank in range(128):
        told = {"size": 128, "host": simulated_nodes.host(rank // 16), "cores": 16, "cpus": range(16), "start": ""}
        store.joined(0, rank, told)
    streams = [simulated_nodes.messages(node, 8, 16) for node in range(8)]
    for _ in range(3):
        for message in map(next, streams):
            store.take(message)
        store.tick()
    update = store.update()
    assert np.isfinite(update.rank[-1][:, 0]).all()
    assert (update.traffic.bytes > 0).all()
    assert update.operations[:, 0].sum() == 3 * 6 * 128
    assert len(list(itertools.islice(streams[0], 2))) == 2


@pytest.mark.parametrize("program", ["head", pytest.param("dashboard", marks=pytest.mark.long)])
def test_a_simulated_program_is_measured(monkeypatch, program):
    monkeypatch.setattr(watching, "_SETTLE", 0.1)
    measured = watching.measure(8, 2, 0.5)
    percent = dict([next(measured)] if program == "head" else measured)
    assert 0 <= percent[program] < 200


def test_ranks_that_are_not_as_many_on_each_node_are_refused():
    with pytest.raises(WorkbenchError):
        next(watching.measure(10, 4, 1.0))


def test_a_program_that_does_not_start_is_told():
    async def run():
        async with watching._program("benchmarks.simulated_head", "/nowhere", "4", "2"):
            pass

    with pytest.raises(WorkbenchError):
        asyncio.run(run())


async def test_a_head_that_ends_while_it_is_measured_ends_the_measurement(monkeypatch):
    async def die(process, seconds):
        process.kill()
        await asyncio.Event().wait()

    monkeypatch.setattr(watching, "_percent", die)

    with pytest.raises(ExceptionGroup) as told:
        await asyncio.wait_for(watching._head(4, 2, 1.0), 2 * DEADLINE)

    assert told.group_contains(OSError)
