"""Outcomes and times of a run of tests, for the end of `make test`. Shows each failure immediately."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest  # noqa: TC002  (registered by name)

_FILE = "WORKBENCH_TEST_TIMES"
# Characters of a failure that are shown immediately; the end of the run shows all.
_SHOWN = 4000


class Times:
    """Adds up what the parts of a test take, and writes a file at the end of the run."""

    def __init__(self, file: Path, config: pytest.Config) -> None:
        self._file = file
        self._config = config
        self._outcomes: Counter[str] = Counter()
        self._seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take one part of a test: setup, call or teardown."""
        self._seconds[report.nodeid] += report.duration
        if report.when == "call" or report.outcome != "passed":
            self._outcomes[report.outcome] += 1
        if report.failed and (terminal := self._config.pluginmanager.get_plugin("terminalreporter")):
            # A run that takes an hour, or is interrupted, shows its failures before its end.
            terminal.write_line(f"\nFAILED {report.nodeid} ({report.when})\n{report.longreprtext[-_SHOWN:]}", red=True)

    def pytest_sessionfinish(self) -> None:
        """Write what this run came to."""
        self._file.write_text(json.dumps({"outcomes": self._outcomes, "seconds": self._seconds}))


def pytest_configure(config: pytest.Config) -> None:
    """Watch the run, unless this is one of the processes of ``pytest -n``."""
    if (file := os.environ.get(_FILE)) and "PYTEST_XDIST_WORKER" not in os.environ:
        config.pluginmanager.register(Times(Path(file), config), "times")
