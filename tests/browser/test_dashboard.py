from __future__ import annotations

import re
import stat
from urllib.parse import parse_qs, urlsplit

import pytest
from browser.viewing import PREFIX, start

PAGES = {
    "Overview": ("Worth a look", "CPU of each rank", "Where time goes", "Memory of each"),
    "Communication": ("Who sends to whom", "Sent by all ranks", "Message sizes", "Where time in MPI goes"),
    "Cores": ("Every core now", "over time", "Nodes"),
    "Training": ("Fits", "Time of each step"),
    "Waiting": ("Does anything stand still?", "What ranks are in", "Stragglers"),
    "Dask": ("Dask's own pages",),
}
FIGURES = "[...Bokeh.documents[0]._all_models.values()].filter(its => its.type == 'Figure').length"
FRAMES = """() => new Promise(told => {
  let frames = 0
  const begin = performance.now()
  const frame = () => {
    frames += 1
    const seconds = (performance.now() - begin) / 1000
    seconds < 0.5 ? requestAnimationFrame(frame) : told(frames / seconds)
  }
  requestAnimationFrame(frame)
})"""


def address_tells(viewer, told):
    """Wait until the address tells this of what is looked at, and nothing else."""
    viewer.page.wait_for_url(
        lambda url: {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()} == told,
        wait_until="commit",
    )


def walk(dashboard, viewer, theme, shots):
    """Turn to one page after the other, and yield its title when it is there."""
    viewer.open(dashboard.address(f"theme={theme}"))
    for title, headings in PAGES.items():
        viewer.turn_to(title)
        for heading in headings:
            viewer.sees(heading)
        viewer.painted()
        yield title
        viewer.page.screenshot(path=shots / f"{title.lower()}-{theme}.png", full_page=True)

    assert viewer.complaints == []
    elsewhere = [url for url in viewer.requests if urlsplit(url).netloc not in ("", f"127.0.0.1:{dashboard.port}")]
    assert elsewhere == []


@pytest.mark.parametrize("ranks", [4, 512])
def test_every_page_shows_numbers_that_move_and_asks_nobody_else_for_anything(
    dashboards, viewer, shots, record_property, ranks
):
    for title in walk(dashboards[ranks], viewer, "light", shots / str(ranks)):
        viewer.moves()
        record_property(f"frames a second, {ranks} ranks, {title}", round(viewer.page.evaluate(FRAMES), 1))


@pytest.mark.parametrize("ranks", [4, 512])
def test_every_page_is_there_in_the_dark_too(dashboards, viewer, shots, ranks):
    for _ in walk(dashboards[ranks], viewer, "dark", shots / str(ranks)):
        viewer.sees("Live")


def test_who_turns_pages_all_day_does_not_gather_them(four, viewer):
    viewer.open(four.address())
    figures = []
    for _ in range(3):
        for title in ("Communication", "Cores", "Waiting", "Overview"):
            viewer.turn_to(title)
            viewer.sees(PAGES[title][0])
            viewer.painted()
        figures.append(viewer.page.evaluate(FIGURES))

    assert 0 < figures[0] == figures[1] == figures[2]


def test_an_address_tells_what_is_looked_at(four, viewer):
    viewer.open(four.address("page=communication&kind=mpi&pair=0,1"))

    viewer.sees("From rank 0 to rank 1")
    viewer.sees("Bytes in the last ten seconds, MPI")
    viewer.page.get_by_text("Messages", exact=True).click()
    viewer.sees("Messages in the last ten seconds, MPI")

    address_tells(viewer, {"page": "communication", "kind": "mpi", "pair": "0,1", "measure": "messages"})


def test_a_field_of_the_matrix_that_is_clicked_shows_its_pair(four, viewer):
    viewer.open(four.address("page=communication"))
    viewer.sees("the busiest pair")
    matrix = viewer.page.locator(".bk-CartesianFrame").first
    box = matrix.bounding_box()

    viewer.page.mouse.click(box["x"] + 0.875 * box["width"], box["y"] + 0.375 * box["height"])

    viewer.sees("From rank 1 to rank 3")
    address_tells(viewer, {"page": "communication", "pair": "1,3"})


def test_who_pauses_sees_one_moment_until_going_on(four, viewer):
    viewer.open(four.address())
    viewer.moves()

    viewer.page.get_by_text("Paused", exact=True).click()
    viewer.sees("ago")
    moment = viewer.clock()[:8]
    viewer.page.get_by_text(re.compile(rf"^{moment}, [1-9]\d* s ago")).wait_for()
    viewer.page.wait_for_function("() => new URLSearchParams(location.search).has('until')")

    viewer.open(viewer.page.url)
    assert viewer.clock()[:8] == moment
    viewer.page.get_by_text("Live", exact=True).click()
    address_tells(viewer, {})
    viewer.moves()


def test_the_numbers_of_a_chart_are_saved_as_a_table(four, viewer):
    viewer.open(four.address())
    chart = viewer.page.locator(".bk-CartesianFrame").nth(1).bounding_box()
    viewer.page.mouse.move(chart["x"] + chart["width"] / 2, chart["y"] + chart["height"] / 2)

    with viewer.page.expect_download() as download:
        viewer.page.locator(".bk-Toolbar").nth(1).get_by_title("Save as CSV").click()

    lines = download.value.path().read_text().splitlines()
    assert lines[0] == "rank,compute,mpi,waiting,idle"
    assert [line.split(",")[0] for line in lines[1:]] == ["0", "1", "2", "3"]


def test_dasks_own_pages_are_embedded(dashboards, viewer):
    page = f"{PREFIX}/static/extensions/panel/images/favicon.ico"

    with viewer.page.expect_event("framenavigated", lambda frame: urlsplit(frame.url).path == page):
        viewer.open(dashboards[512].address("page=dask"))

    viewer.page.locator("iframe").wait_for()


def test_where_dasks_own_pages_are_out_of_reach_that_is_said(four, viewer):
    viewer.open(four.address("page=dask"))

    viewer.sees("not reachable from here")


def test_who_has_chosen_no_theme_gets_that_of_the_system(four, viewer):
    viewer.page.emulate_media(color_scheme="dark")
    viewer.open(four.address())

    viewer.page.get_by_role("button", name="Light").click()
    viewer.page.get_by_role("button", name="Dark").wait_for()
    address_tells(viewer, {"theme": "light"})


def test_a_page_that_is_cut_off_says_so(viewer):
    dashboard = start(2, 1)
    viewer.open(dashboard.address())
    assert not viewer.page.get_by_text("not connected any more").is_visible()

    assert dashboard.end() == 0

    viewer.sees("This page is not connected any more: reload it.")


def test_the_socket_is_for_this_user_alone_and_gone_in_the_end():
    dashboard = start(2, 1)

    assert stat.S_IMODE(dashboard.socket.stat().st_mode) == 0o600
    assert dashboard.end() == 0
    assert not dashboard.socket.exists()
