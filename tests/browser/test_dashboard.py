"""The dashboard of simulated clusters: every page, and what it remembers."""

from __future__ import annotations

import re
import stat
from urllib.parse import parse_qs, urlsplit

import pytest
from support.processes import until

from browser.viewing import PREFIX, Viewer, start
from workbench.lab.dashboard.charts import WORDS

PAGES = {
    "Overview": ("Worth a look", "CPU of each rank", "Where time goes", "Memory of each"),
    "Communication": ("Who sends to whom", "Sent by all ranks", "Message sizes", "Where time in MPI goes"),
    "Cores": ("Every core now", "over time", "Nodes"),
    "Training": ("Fits", "Time of each step"),
    "Waiting": ("Stalled operations", "Current operations", "Stragglers"),
    "Dask": ("Dask's dashboard",),
}
FIGURES = "[...Bokeh.documents[0]._all_models.values()].filter(its => its.type == 'Figure').length"


def address_tells(viewer, told):
    """Wait until the address contains this view, and nothing else."""
    viewer.page.wait_for_url(
        lambda url: {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()} == told,
        wait_until="commit",
    )


def show(viewer, title, shot, theme):
    """Turn to a page, and wait until it is there."""
    viewer.turn_to(title)
    for heading in PAGES[title]:
        viewer.sees(heading)
    viewer.painted()
    shot(viewer.page, f"{theme}-{title.lower()}", full_page=True)


def assert_nothing_went_wrong(viewer, dashboard):
    assert viewer.complaints == []
    elsewhere = [url for url in viewer.requests if urlsplit(url).netloc not in ("", f"127.0.0.1:{dashboard.port}")]
    assert elsewhere == []


def test_every_page_of_512_ranks_moves_asks_nobody_else_for_anything_and_says_when_it_is_cut_off(viewer, shot):
    # what stands for Dask's pages is anything that is there
    page = "static/extensions/panel/images/favicon.ico"
    dashboard = start(512, 32, dask=page)
    viewer.open(dashboard.address("theme=light"))

    for title in [title for title in PAGES if title != "Dask"]:
        show(viewer, title, shot, "light")
        viewer.moves()
    with viewer.page.expect_event("framenavigated", lambda frame: urlsplit(frame.url).path == f"{PREFIX}/{page}"):
        show(viewer, "Dask", shot, "light")
    viewer.page.locator("iframe").wait_for()

    assert_nothing_went_wrong(viewer, dashboard)
    assert not viewer.page.get_by_text("connection to the dashboard was lost").is_visible()
    assert stat.S_IMODE(dashboard.socket.stat().st_mode) == 0o600, "it is for this user alone"

    assert dashboard.end() == 0

    viewer.sees("The connection to the dashboard was lost. Reload the page.")
    assert not dashboard.socket.exists()


def test_who_has_chosen_no_theme_sees_every_page_in_that_of_the_system_and_turning_pages_does_not_gather_them(
    four, viewer, shot
):
    viewer.page.emulate_media(color_scheme="dark")
    viewer.open(four.address())
    for title in PAGES:
        show(viewer, title, shot, "dark")
        viewer.sees("Live")
    viewer.sees("not reachable from here")

    figures = []
    for title in ("Overview", "Communication", "Overview"):
        show(viewer, title, shot, "dark")
        figures.append(viewer.page.evaluate(FIGURES))
    assert 0 < figures[0] == figures[2]
    assert_nothing_went_wrong(viewer, four)

    viewer.page.get_by_role("button", name="Light").click()
    viewer.page.get_by_role("button", name="Dark").wait_for()
    address_tells(viewer, {"theme": "light"})


def test_an_address_tells_what_is_looked_at_also_the_pair_of_a_field_that_is_clicked(four, viewer):
    viewer.open(four.address("page=communication&kind=mpi&pair=0,1"))
    viewer.sees("From rank 0 to rank 1")
    viewer.sees("Sent bytes in the last ten seconds, MPI")

    box = viewer.page.locator(".bk-CartesianFrame").first.bounding_box()
    viewer.page.mouse.click(box["x"] + 0.875 * box["width"], box["y"] + 0.375 * box["height"])
    viewer.sees("From rank 1 to rank 3")
    address_tells(viewer, {"page": "communication", "kind": "mpi", "pair": "1,3"})

    viewer.page.get_by_text("Messages", exact=True).click()
    viewer.sees("Sent messages in the last ten seconds, MPI")
    address_tells(viewer, {"page": "communication", "kind": "mpi", "pair": "1,3", "measure": "messages"})


def bottom(viewer, title):
    """Return where the card of a title ends."""
    box = viewer.page.locator(".bk-panel-models-layout-Column", has=viewer.page.get_by_role("heading", name=title))
    return box.last.evaluate("its => its.getBoundingClientRect().bottom")


def test_cards_beside_each_other_end_at_one_height_and_no_page_is_wider_than_a_narrow_window(four, viewer):
    viewer.open(four.address("page=communication"))

    beside = ("Who sends", "Sent by all"), ("Message sizes", "Where time in MPI")
    # The browser has no event for the end of a layout.
    until("they do", lambda: all(abs(bottom(viewer, left) - bottom(viewer, right)) < 1 for left, right in beside))

    viewer.page.set_viewport_size({"width": 540, "height": 900})
    for title in [title for title in PAGES if title != "Dask"]:
        viewer.turn_to(title)
        viewer.sees(PAGES[title][0])
        viewer.painted()
        viewer.page.wait_for_function("() => document.documentElement.scrollWidth == 540")
    viewer.turn_to("Waiting")
    # In one task of the browser, since the page draws its table anew every second.
    activity = """its => {
        its.textContent = "in LogisticRegressionWithARatherLongNameOfItsOwn.fit_intercept_and_coefficients, outside MPI"
        return document.documentElement.scrollWidth
    }"""
    assert viewer.page.locator("td.wide").first.evaluate(activity) == 540
    theme, name = (viewer.page.locator(f"header {what}").bounding_box() for what in ("#theme", ".name"))
    assert theme["y"] < name["y"] + name["height"], "both are in one line"


@pytest.mark.parametrize(
    ("unit", "number", "text"),
    [
        ("seconds", 0.25, "250 ms"),
        ("seconds", 15000, "15,000 s"),
        ("number", 0, "0"),
        ("number", 500000, "500,000"),
        ("number", 0.125, "0.125"),
        ("number", 2e-7, "2e-7"),
    ],
)
def test_numbers_on_an_axis_are_as_those_in_tiles(viewer, unit, number, text):
    assert viewer.page.evaluate(f"number => {{ {WORDS[unit]} }}", number) == text


@pytest.fixture(scope="module")
def overview(four, chromium):
    """Return who looks at the first page."""
    overview = Viewer.alone(chromium)
    overview.open(four.address())
    yield overview
    overview.page.context.close()


def test_who_pauses_sees_one_moment_until_going_on(overview):
    overview.moves()

    overview.page.get_by_text("Paused", exact=True).click()
    overview.sees("ago")
    moment = overview.clock()[:8]
    overview.page.get_by_text(re.compile(rf"^{moment}, [1-9]\d* s ago")).wait_for()
    overview.page.wait_for_function("() => new URLSearchParams(location.search).has('until')")

    overview.open(overview.page.url)
    assert overview.clock()[:8] == moment
    overview.page.get_by_text("Live", exact=True).click()
    address_tells(overview, {})
    overview.moves()


def test_the_numbers_of_a_chart_are_saved_as_a_table(overview):
    chart = overview.page.locator(".bk-CartesianFrame").nth(1).bounding_box()
    overview.page.mouse.move(chart["x"] + chart["width"] / 2, chart["y"] + chart["height"] / 2)

    with overview.page.expect_download() as download:
        overview.page.locator(".bk-Toolbar").nth(1).get_by_title("Save as CSV").click()

    lines = download.value.path().read_text().splitlines()
    assert lines[0] == "rank,compute,mpi,waiting,idle"
    assert [line.split(",")[0] for line in lines[1:]] == ["0", "1", "2", "3"]
