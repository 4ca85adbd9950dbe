"""Three notebooks simultaneously on one cluster: each result is right, whatever the others do, and nothing is left."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from distributed import Client
from support.left import left_in
from support.mixed_notebook import KINDS
from support.processes import DEADLINE, kill, processes_of, until

from workbench import MPICluster

# `make test-long` has 10,000 operations, kills a notebook and restarts the ranks. Every day half a minute is enough.
LONG = "WORKBENCH_CYCLES" in os.environ
OPTIONS = ["--restarts=2"] if LONG else ["--seconds=30"]
OPERATIONS = 200 * int(os.environ.get("WORKBENCH_CYCLES", "5"))
NOTEBOOKS = 3
# Threads and files that a process may have more than before: those of pools that grow with their use.
MORE = 8


@pytest.fixture
def cluster() -> Iterator[MPICluster]:
    """Ranks that are not shared: growth is measured, and ranks start again."""
    with MPICluster(3, name="mixed", quiet=True) as cluster:
        yield cluster


@pytest.fixture
def notebook(cluster: MPICluster) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start a notebook whose lines go to a file."""
    with ExitStack() as running:

        def start(output: Path, number: int, operations: int, *options: str) -> subprocess.Popen[bytes]:
            numbers = [str(number), os.environ["WORKBENCH_TEST_SEED"], str(operations)]
            program = [sys.executable, "-m", "support.mixed_notebook", cluster.name, *numbers, *options]
            with output.open("wb") as file:
                process = running.enter_context(subprocess.Popen(program, stdout=file))
            running.callback(process.kill)
            return process

        yield start


def lines(output: Path) -> list[dict[str, Any]]:
    """Return what a notebook has printed, without the messages of the package."""
    return [json.loads(line) for line in output.read_text().splitlines() if line.startswith("{") and line.endswith("}")]


def test_what_each_of_three_notebooks_finds_is_right_and_nothing_is_left(
    cluster: MPICluster,
    notebook: Callable[..., subprocess.Popen[bytes]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    outputs = [tmp_path / f"{number}.json" for number in range(NOTEBOOKS)]
    first = tmp_path / "first"
    assert notebook(first, 9, len(KINDS), "--interrupts=0").wait(DEADLINE) == 0
    assert {name: kind["count"] for name, kind in lines(first)[-1]["kinds"].items()} == dict.fromkeys(KINDS, 1)
    before = usage(cluster)

    processes = [notebook(output, number, OPERATIONS // NOTEBOOKS, *OPTIONS) for number, output in enumerate(outputs)]
    if LONG:
        until("a half", lambda: any("half" in line for line in lines(outputs[-1])), OPERATIONS)
        kill(processes.pop())
    until("the end", lambda: all(process.poll() is not None for process in processes), DEADLINE + OPERATIONS)

    wrong = [line for output in (first, *outputs) for line in lines(output) if "kind" in line]
    summaries = [line for output in outputs for line in lines(output) if "operations" in line]
    assert not wrong, json.dumps(wrong, indent=1)
    assert [process.returncode for process in processes] == [0] * len(processes)
    assert [(summary["wrong"], summary["left"]) for summary in summaries] == [(0, [])] * len(processes)
    assert all(summary["interrupts"] for summary in summaries)
    until("nothing is left", lambda: left_in(cluster) == {})
    with Client(cluster, set_as_default=False) as client:
        left: dict[str, list[str]] = {}
        with contextlib.suppress(pytest.fail.Exception):
            until("nothing is on the ranks", lambda: not any((left.update(client.run(held)), left.values())[1]))
    assert not any(left.values()), left
    with capsys.disabled():  # tests that pass show no output
        print(growth(before, usage(cluster), summaries))  # noqa: T201  (for who runs the long test)
    until("threads and files are as before", lambda: more_than(before, usage(cluster)) == [])


def held(dask_worker: Any) -> list[str]:
    """Return the keys of the values of a rank."""
    return [str(key) for key in dask_worker.data]


def usage(cluster: MPICluster) -> dict[int, dict[str, Any]]:
    """Return memory, threads and files of the processes of a cluster, by pid."""
    names = {cluster.record.process.pid: "head"} | {rank["pid"]: f"rank {rank['rank']}" for rank in cluster.ranks}
    return {
        process.pid: {
            "name": names[process.pid],
            "kB": process.memory_info().rss // 1000,
            "threads": process.num_threads(),
            "files": process.num_fds(),
        }
        for process in processes_of(cluster)
        if process.pid in names
    }


def more_than(before: dict[int, dict[str, Any]], now: dict[int, dict[str, Any]]) -> list[str]:
    """Return which processes, of those that were there before, have more threads or files."""
    return [
        f"{used['name']}: {used[what]} {what}, before {before[pid][what]}"
        for pid, used in now.items()
        for what in ("threads", "files")
        if pid in before and used[what] > before[pid][what] + MORE
    ]


def growth(before: dict[int, dict[str, Any]], now: dict[int, dict[str, Any]], summaries: list[dict[str, Any]]) -> str:
    """Return a table of the growth of each process, and that of the notebooks by kind of operation."""
    rows = [["", "operations", "kB/operation", "threads", "files"]]
    operations = sum(each["operations"] for each in summaries)
    for pid, used in now.items():
        grown = f"{(used['kB'] - before[pid]['kB']) / operations:.2f}" if pid in before else "started again"
        rows.append([used["name"], operations, grown, used["threads"], used["files"]])
    for each in summaries:
        measured = per_operation(each["kinds"].values())
        rows.append([f"notebook {each['notebook']}", *measured, each["threads"], each["files"]])
    rows += [[f"  {kind}", *per_operation(each["kinds"].get(kind, {}) for each in summaries), "", ""] for kind in KINDS]
    return "".join(f"\n{row[0]:34}" + "".join(f"{cell:>13}" for cell in row[1:]) for row in rows)


def per_operation(kinds: Iterable[dict[str, Any]]) -> tuple[int, str]:
    """Return the measured operations of kinds, and the mean growth of a notebook by one."""
    counted = [each for each in kinds if each]
    operations = sum(each["measured"] for each in counted)
    return operations, f"{sum(each['kB'] for each in counted) / max(1, operations):.2f}"
