"""The dashboard in JupyterLab: under the cell that asks for it, and in a tab of its own."""

from __future__ import annotations

from urllib.parse import urlsplit

import psutil
import pytest
from browser.lab import BASE, Worker, started
from browser.viewing import Viewer
from support.processes import gone, until

from workbench import registry

CELLS = ["%load_ext workbench", "%mpicluster start 2 --name lab", "%mpicluster dashboard", "%mpicluster stop"]


@pytest.fixture
def lab(tmp_path):
    with started(tmp_path) as lab:
        lab.write("a.ipynb", CELLS)
        yield lab


def test_a_notebook_shows_the_dashboard_of_its_cluster_live_and_nobody_else(lab, chromium, shots):
    worker = Worker.at(lab, chromium)
    worker.open_notebook("a.ipynb")
    said = worker.run(0) + worker.run(1)
    assert "2 of 2" in said, said
    record = registry.read("lab")

    worker.run(2)

    frame = worker.page.locator("iframe[title=dashboard]")
    inside = Viewer(frame.element_handle().content_frame())
    inside.painted()
    inside.sees("2 of 2")
    inside.moves()
    inside.turn_to("Cores")
    inside.sees("Every core now")
    inside.moves()
    worker.page.screenshot(path=shots / "lab.png")

    with worker.page.context.expect_page() as opened:
        worker.page.get_by_role("link", name="open the dashboard in a tab of its own").click()
    tab = Worker.of(opened.value)
    tab.painted()
    tab.sees("2 of 2")
    tab.moves()
    assert urlsplit(tab.page.url).path == f"{BASE}workbench/dashboard/lab/"
    assert frame.get_attribute("src") == urlsplit(tab.page.url).path

    stranger = chromium.new_context()
    refused = stranger.request.get(tab.page.url, max_redirects=0)
    assert (refused.status, urlsplit(refused.headers["location"]).path) == (302, f"{BASE}login")
    stranger.close()

    assert worker.faults() + tab.faults() == []
    assert worker.elsewhere(lab) + tab.elsewhere(lab) == []

    ended = [*lab.process.children(recursive=True), psutil.Process(record.process.pid)]
    assert len(ended) >= 3  # the kernel, the dashboard and the head, at least
    worker.run(3)
    inside.sees("has ended")
    assert not registry.owns_lease(record)
    worker.leave()
    lab.process.terminate()
    until("all of it has ended", lambda: all(map(gone, ended)))
