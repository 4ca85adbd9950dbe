"""A report in a browser without a network."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from benchmarks.simulated import Simulated
from workbench.lab.dashboard.report import report

HEADINGS = (
    "Worth a look",
    "Where time goes",
    "Who sends to whom",
    "One pair over time",
    "Every core now",
    "Time of each step",
    "Stalled operations",
    "Stragglers",
)
PAINTED = "() => window.Bokeh?.documents.length === 5 && Bokeh.documents.every(its => its.is_idle)"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return a folder of reports, named for their number of ranks."""
    folder = tmp_path_factory.mktemp("reports")
    # a separate thread, because Playwright has a loop in this one
    with ThreadPoolExecutor(1) as pool:
        for ranks, nodes in ((4, 1), (512, 32)):
            drawing = report(Simulated(ranks, nodes, history=120), "simulated")
            told = pool.submit(asyncio.run, drawing).result()
            (folder / f"{ranks}.html").write_text(told, encoding="utf-8")
    return folder


THEME = "document.documentElement.dataset.theme"


def painted(viewer):
    viewer.page.wait_for_function(PAINTED)


def test_a_report_of_512_ranks_opens_from_the_file_and_asks_nobody_for_anything(files, viewer, shot):
    file = (files / "512.html").as_uri()

    viewer.page.goto(file)
    painted(viewer)

    for heading in HEADINGS:
        viewer.sees(heading)
    assert viewer.page.evaluate(THEME) == "light"
    shot(viewer.page, "report-512-light", full_page=True)
    assert viewer.complaints == []
    assert [url for url in viewer.requests if not url.startswith(("data:", "blob:"))] == [file]


def test_a_report_has_the_theme_of_the_system_until_its_reader_chooses_and_offers_nothing_that_needs_a_server(
    files, viewer, shot
):
    viewer.page.emulate_media(color_scheme="dark")

    # a theme that there is not is passed over
    viewer.page.goto(f"{(files / '4.html').as_uri()}?theme=pink")
    painted(viewer)

    for heading in HEADINGS:
        viewer.sees(heading)
    assert viewer.page.evaluate(THEME) == "dark"
    shot(viewer.page, "report-4-dark", full_page=True)
    assert viewer.page.get_by_title("Save as CSV").count() == 0
    assert viewer.page.get_by_text("Click a cell").count() == 0
    assert viewer.page.locator("select").count() == 0

    viewer.page.get_by_role("button", name="Light").click()
    viewer.page.get_by_role("button", name="Dark").wait_for()
    painted(viewer)
    assert viewer.page.evaluate(THEME) == "light"
    assert viewer.complaints == []
