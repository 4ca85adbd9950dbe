"""What a test that fails shows beside its traceback: the last lines of the logs of the clusters that it has used."""

from __future__ import annotations

import faulthandler
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key

from support.patience import DEADLINE

# Maximum lines of each log in the output, logs of each kind, and clusters.
_LINES, _RANKS, _CLUSTERS = 25, 4, 3
_began = pytest.StashKey[float]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note when a test begins: logs that were written since are its own, or its neighbors'."""
    item.stash[_began] = time.time()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Add logs to the report of a failure."""
    outcome: Any = yield
    report = outcome.get_result()
    if report.failed:
        report.sections += list(logs(item.stash.get(_began, time.time())))


@pytest.hookimpl(trylast=True)
def pytest_exception_interact(node: pytest.Item | pytest.Collector) -> None:
    """Have a hang in what follows a failure end the run too: pytest has stopped its watch, for a debugger."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        stderr = node.config.stash[fault_handler_stderr_fd_key]
        faulthandler.dump_traceback_later(2 * DEADLINE, exit=True, file=stderr)


def logs(since: float) -> Iterator[tuple[str, str]]:
    """Yield title and last lines of the logs that clusters have written since then, the newest cluster first."""
    folder = Path(os.environ.get("JUPYTER_DATA_DIR", "/nowhere")) / "workbench" / "logs"
    found = [(max(map(_written, cluster.iterdir()), default=0.0), cluster) for cluster in folder.glob("*/")]
    for written, cluster in sorted(found, reverse=True)[:_CLUSTERS]:
        if written < since:
            return
        ranks = sorted(cluster.glob("rank-*.log"), key=_written, reverse=True)[:_RANKS]
        for log in (*cluster.glob("head*.log"), *sorted(cluster.glob("world-*.log")), *sorted(ranks)):
            if last := _last_lines(log):
                yield f"{cluster.name}/{log.name}", last


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0  # its cluster has ended, and was the oldest


def _last_lines(log: Path) -> str:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return ""
    left_out = [f"... {len(lines) - _LINES} lines before"] if len(lines) > _LINES else []
    return "\n".join(line[:500] for line in (*left_out, *lines[-_LINES:]))
