"""A headless Chromium, and dashboards of simulated clusters to look at."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser.chromium import running_chromium
from browser.viewing import PATIENCE, Dashboard, Viewer, start


@pytest.fixture(scope="session")
def dashboards() -> Iterator[dict[int, Dashboard]]:
    """Return dashboards by their number of ranks."""
    # what stands for Dask's pages is anything that is there
    started = {4: start(4, 1), 512: start(512, 32, dask="static/extensions/panel/images/favicon.ico")}
    yield started
    for dashboard in started.values():
        dashboard.end()


@pytest.fixture
def four(dashboards: dict[int, Dashboard]) -> Dashboard:
    return dashboards[4]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    # not of the session: its event loop runs on in this thread, and tests of other modules have loops of their own
    with running_chromium() as browser:
        yield browser


@pytest.fixture
def viewer(chromium: Any) -> Iterator[Viewer]:
    context = chromium.new_context(viewport={"width": 1400, "height": 900}, accept_downloads=True)
    context.set_default_timeout(PATIENCE)
    yield Viewer.of(context.new_page())
    context.close()


@pytest.fixture
def shots(tmp_path: Path) -> Path:
    folder = Path(os.environ.get("WORKBENCH_SHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    return folder
