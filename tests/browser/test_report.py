"""A report in a browser that reaches nobody."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from workbench.bench.simulated import Simulated
from workbench.dashboard.report import report

HEADINGS = (
    "Worth a look",
    "Where time goes",
    "Who sends to whom",
    "One pair over time",
    "Every core now",
    "Time of each step",
    "Does anything stand still?",
    "Stragglers",
)
PAINTED = "() => window.Bokeh?.documents.length === 5 && Bokeh.documents.every(its => its.is_idle)"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return a folder of reports, named for their number of ranks."""
    folder = tmp_path_factory.mktemp("reports")
    # a thread of its own, for Playwright has a loop in this one
    with ThreadPoolExecutor(1) as pool:
        for ranks, nodes in ((4, 1), (512, 32)):
            drawing = report(Simulated(ranks, nodes, history=600), "simulated")
            told = pool.submit(asyncio.run, drawing).result()
            (folder / f"{ranks}.html").write_text(told, encoding="utf-8")
    return folder


def painted(viewer):
    viewer.page.wait_for_function(PAINTED)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("ranks", [4, 512])
def test_a_report_opens_from_the_file_and_asks_nobody_for_anything(files, viewer, shots, ranks, theme):
    viewer.page.emulate_media(color_scheme=theme)
    file = (files / f"{ranks}.html").as_uri()

    viewer.page.goto(file)
    painted(viewer)

    for heading in HEADINGS:
        viewer.sees(heading)
    assert viewer.page.evaluate("document.documentElement.dataset.theme") == theme
    viewer.page.screenshot(path=shots / f"report-{ranks}-{theme}.png", full_page=True)
    assert viewer.complaints == []
    assert [url for url in viewer.requests if not url.startswith(("data:", "blob:"))] == [file]


def test_who_reads_a_report_may_choose_its_theme(files, viewer):
    viewer.page.goto((files / "4.html").as_uri())
    painted(viewer)

    viewer.page.get_by_role("button", name="Dark").click()

    viewer.page.get_by_role("button", name="Light").wait_for()
    painted(viewer)
    assert viewer.page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_a_theme_that_there_is_not_is_passed_over(files, viewer):
    viewer.page.emulate_media(color_scheme="dark")

    viewer.page.goto(f"{(files / '4.html').as_uri()}?theme=pink")
    painted(viewer)

    assert viewer.page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert viewer.complaints == []


def test_a_report_offers_nothing_that_needs_a_server(files, viewer):
    viewer.page.goto((files / "4.html").as_uri())
    painted(viewer)

    assert viewer.page.get_by_title("Save as CSV").count() == 0
    assert viewer.page.get_by_text("click a field").count() == 0
    assert viewer.page.locator("select").count() == 0
