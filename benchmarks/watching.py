"""CPU and memory of a head that receives from many simulated ranks, and of a dashboard with a viewer."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil

from benchmarks.simulated_dashboard import PACE
from benchmarks.simulated_nodes import messages
from workbench.cancellation import run_to_end
from workbench.comm import certificates
from workbench.errors import InvalidRequest, WorkbenchError
from workbench.metrics.schema import TICK
from workbench.text import count

# Seconds for a program to start, and for what it does at its beginning.
_START, _SETTLE = 60.0, 5.0
# Pages that one who looks for an hour turns to, and how often.
_TITLES, _TURNS = ("Communication", "Cores", "Training", "Waiting", "Overview"), 60
_MIB = 1 << 20


def measure(ranks: int, nodes: int, seconds: float) -> Iterator[tuple[str, float]]:
    """Yield ``"head"`` and ``"dashboard"`` with the CPU of each, in percent of a core.

    Parameters
    ----------
    ranks, nodes
        That are simulated.
    seconds
        For each.
    """
    if ranks % nodes:
        raise WorkbenchError(f"{count(ranks, 'rank')} on {count(nodes, 'node')} is not valid. Choose as many on each")
    yield "head", asyncio.run(_head(ranks, nodes, seconds))
    yield "dashboard", asyncio.run(_dashboard(ranks, nodes, seconds))


def hour(ranks: int, nodes: int, seconds: float) -> list[tuple[str, float, float]]:
    """Return what a dashboard and the page of one who looks keep in memory during an hour, in MiB.

    Parameters
    ----------
    ranks, nodes
        That are simulated.
    seconds
        That the hour takes: everything is as much faster. Fewer seconds than the machine can draw it in leave out
        pictures, and no numbers.

    Returns
    -------
    kept : list of (str, float, float)
        At a quarter, half and the whole of it: when; the resident memory of the dashboard; the heap of the page.
    """
    return asyncio.run(_hour(ranks, nodes, seconds))


def require_browser() -> None:
    """Raise `InvalidRequest` if there is no browser that could show the dashboard here."""
    asyncio.run(_browser())


async def _browser() -> str:
    """Return the path of Debian's Chromium, or of Playwright's."""
    try:
        from playwright.async_api import async_playwright
    except ImportError as error:
        raise InvalidRequest(
            "this bench shows the dashboard in Chromium, by Playwright, which is not installed: "
            "pip install 'mpi-workbench[bench]', then playwright install chromium"
        ) from error
    if debian := shutil.which("chromium"):
        return debian
    async with async_playwright() as playwright:
        path = playwright.chromium.executable_path
    if shutil.which(path) is None:
        raise InvalidRequest(
            "this bench shows the dashboard in Chromium, which is not installed: "
            "run playwright install chromium, or install the Debian package chromium"
        )
    return path


@asynccontextmanager
async def _program(*words: str, **variables: str) -> AsyncIterator[tuple[psutil.Process, str]]:
    """Start a program of this package; give its process and its first line, and end it by its standard input."""
    command = [sys.executable, "-P", "-m", *words]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | variables
    )
    try:
        if process.stdout is None or process.stdin is None:
            raise RuntimeError("pipes were asked for")
        line = (await asyncio.wait_for(process.stdout.readline(), _START)).decode().strip()
        if not line:
            raise WorkbenchError(f"{words[0]} ended early, with exit code {await process.wait()}")
        yield psutil.Process(process.pid), line
        process.stdin.close()
        await asyncio.wait_for(process.wait(), _START)
    finally:
        if process.returncode is None:
            process.kill()
            await run_to_end(process.wait())


async def _percent(process: psutil.Process, seconds: float) -> float:
    await asyncio.sleep(_SETTLE)
    before, begin = sum(process.cpu_times()[:2]), time.perf_counter()
    await asyncio.sleep(seconds)
    used: float = sum(process.cpu_times()[:2]) - before
    return 100 * used / (time.perf_counter() - begin)


async def _head(ranks: int, nodes: int, seconds: float) -> float:
    from distributed.batched import BatchedSend
    from distributed.comm.core import connect
    from distributed.core import rpc

    with tempfile.TemporaryDirectory() as folder:
        certificates.make(Path(folder), "bench")
        arguments = certificates.security(Path(folder)).get_connection_args("client")
        async with _program("benchmarks.simulated_head", folder, str(ranks), str(nodes)) as (process, address):
            streams = []
            for _ in range(nodes):
                comm = await connect(address, **arguments)
                await comm.write({"op": "node", "reply": False})
                stream = BatchedSend(interval="10ms")
                stream.start(comm)
                streams.append(stream)
            # Made before: what is measured is not to wait for what simulates.
            prepared = [list(itertools.islice(messages(node, nodes, ranks // nodes), 8)) for node in range(nodes)]
            try:
                # what goes wrong with one of them ends the measurement
                async with rpc(address, connection_args=arguments) as head, asyncio.TaskGroup() as group:
                    around = group.create_task(_send(streams, prepared)), group.create_task(_look(head))
                    percent = await _percent(process, seconds)
                    for task in around:
                        task.cancel()
                return percent
            finally:
                for stream in streams:
                    stream.abort()


async def _send(streams: list[Any], prepared: list[list[dict[str, Any]]]) -> None:
    for tick in itertools.count():
        for stream, of_node in zip(streams, prepared, strict=True):
            stream.send({"op": "workbench-metrics", **of_node[tick % len(of_node)]})
        await asyncio.sleep(TICK - time.time() % TICK)


async def _look(head: Any) -> None:
    """Ask for what is new, as a dashboard does."""
    since = 0
    while True:
        since = (await head.workbench_metrics(since=since))["seq"]
        await asyncio.sleep(TICK)


async def _dashboard(ranks: int, nodes: int, seconds: float) -> float:
    async with _watched(ranks, nodes) as (process, _):
        return await _percent(process, seconds)


async def _hour(ranks: int, nodes: int, seconds: float) -> list[tuple[str, float, float]]:
    kept = []
    async with _watched(ranks, nodes, 3600 / seconds) as (process, page):
        begin, pages = time.monotonic(), itertools.cycle(_TITLES)
        devtools = await page.context.new_cdp_session(page)
        await devtools.send("Performance.enable")
        for part, when in ((0.25, "a quarter of an hour"), (0.5, "half an hour"), (1.0, "an hour")):
            while (left := begin + part * seconds - time.monotonic()) > 0:
                await page.locator("nav").get_by_text(next(pages), exact=True).click()
                await asyncio.sleep(min(left, seconds / _TURNS))
            await devtools.send("HeapProfiler.collectGarbage")
            answer = await devtools.send("Performance.getMetrics")
            heap = next(metric["value"] for metric in answer["metrics"] if metric["name"] == "JSHeapUsedSize")
            kept.append((when, process.memory_info().rss / _MIB, heap / _MIB))
    return kept


@asynccontextmanager
async def _watched(ranks: int, nodes: int, pace: float = 1.0) -> AsyncIterator[tuple[psutil.Process, Any]]:
    """Give the process of a dashboard and the page of one who looks at it."""
    executable = await _browser()
    from playwright.async_api import async_playwright

    with tempfile.TemporaryDirectory() as folder:
        words = (str(ranks), str(nodes), f"{folder}/panel.sock")
        async with (
            _program("benchmarks.simulated_dashboard", *words, **{PACE: str(pace)}) as (process, port),
            async_playwright() as playwright,
        ):
            options = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
            browser = await playwright.chromium.launch(executable_path=executable, args=options)
            page = await browser.new_page()
            await page.goto(f"http://127.0.0.1:{port}/")
            await page.wait_for_function("() => window.Bokeh?.documents[0]?.is_idle")
            yield process, page
            await browser.close()
