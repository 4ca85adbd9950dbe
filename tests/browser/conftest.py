"""A headless Chromium, a JupyterLab, and dashboards of simulated clusters, which all tests here share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from browser.chromium import running_chromium
from browser.evidence import keep
from browser.lab import Lab
from browser.viewing import Dashboard, Viewer, start


# The scope is the folder, not the session: Playwright's event loop runs on in this thread, and tests of other folders
# have separate loops.
@pytest.fixture(scope="package")
def chromium() -> Iterator[Any]:
    with running_chromium() as browser:
        yield browser


@pytest.fixture(scope="package")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Return a JupyterLab with the server extension and no clusters; who starts some ends them."""
    lab = Lab(tmp_path_factory.mktemp("lab"))
    yield lab
    lab.end()


@pytest.fixture(scope="module")
def four() -> Iterator[Dashboard]:
    """Return the dashboard of 4 ranks on one node."""
    dashboard = start(4, 1)
    yield dashboard
    dashboard.end()


@pytest.fixture
def viewer(chromium: Any) -> Iterator[Viewer]:
    viewer = Viewer.alone(chromium)
    yield viewer
    viewer.page.context.close()


@pytest.fixture
def shot() -> Callable[..., None]:
    """Return the function that stores a picture of a page if WORKBENCH_SHOTS is set."""
    return keep
