"""JupyterLab as under a hub: no page may be shown in a frame."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from browser.lab import Worker, end_clusters, started, workbench

pytestmark = pytest.mark.in_order

NAME = "unframed"
FORBID = """--ServerApp.tornado_settings={'headers': {'Content-Security-Policy': "frame-ancestors 'none'"}}"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    with started(tmp_path_factory.mktemp("lab"), FORBID, base="/") as lab:
        yield lab
        end_clusters(NAME)


@pytest.fixture(scope="module")
def worker(lab, chromium):
    worker = Worker.at(lab, chromium)
    yield worker
    worker.leave()


def test_the_panel_is_there_and_hears_of_clusters_without_a_base_url(worker):
    worker.show_clusters()
    worker.sees("No clusters.")

    workbench("start", "2", "--name", NAME)

    worker.card(NAME).get_by_text("2 ranks", exact=True).wait_for()


def test_a_dashboard_is_a_page_of_the_browser_and_lives(worker, lab, shots):
    dashboard = worker.dashboard_page(NAME)

    dashboard.sees("2 of 2")
    dashboard.moves()
    dashboard.page.screenshot(path=shots / "extension-unframed.png")
    assert urlsplit(dashboard.page.url).path == f"/workbench/dashboard/{NAME}/"
    assert worker.page.locator("iframe").count() == 0
    assert worker.faults() + dashboard.faults() == []
    assert worker.elsewhere(lab) + dashboard.elsewhere(lab) == []
