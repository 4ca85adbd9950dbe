"""JupyterLab among others: clusters of notebooks and terminals, other browsers, and a server that is not as it was."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import psutil
import pytest
from support.processes import gone, until

from browser.lab import BASE, PANEL, Worker, end_clusters, workbench
from browser.viewing import Viewer
from workbench.deploy import registry
from workbench.deploy.folder import ClusterFolder

pytestmark = pytest.mark.in_order

CELLS = ["%load_ext workbench", "%mpicluster start 2 --name lab", "%mpicluster dashboard"]
NAME = "of-a-terminal"


@pytest.fixture(scope="module")
def worker(lab, chromium):
    lab.write("lab.ipynb", CELLS)
    worker = Worker.at(lab, chromium)
    worker.show_clusters()
    yield worker
    end_clusters("lab")
    worker.leave()


@pytest.fixture(scope="module")
def inside(worker):
    """Start a cluster in a notebook, and return who looks at its dashboard under the cell that asks for it."""
    worker.open_notebook("lab.ipynb")
    said = worker.run(0) + worker.run(1)
    assert "2 of 2" in said, said
    worker.run(2)
    inside = Viewer(worker.page.locator("iframe[title=dashboard]").element_handle().content_frame())
    inside.painted()
    return inside


@pytest.fixture(scope="module")
def started_by_server(inside, lab):
    """Return the processes that the server has started, directly or not."""
    head = psutil.Process(registry.read("lab").process.pid)
    processes = [*lab.process.children(recursive=True), head]
    assert len(processes) >= 3  # the kernel, the dashboard and the head, at least
    return processes


class Extension:
    """Whether the server has its extension, as a page of a browser sees it."""

    def __init__(self):
        self.enabled = False

    def lead(self, page):
        """Have the server answer to requests to it as to others of which it knows nothing, while it is not enabled."""
        page.route("**/workbench/api/**", self._answer)
        page.route_web_socket(
            re.compile("/workbench/api/"),
            lambda socket: socket.connect_to_server() if self.enabled else socket.close(),
        )

    def _answer(self, route):
        url = route.request.url
        route.continue_(url=url if self.enabled else url.replace("/workbench/api/", "/unknown/"))


@pytest.fixture(scope="module")
def extension():
    return Extension()


@pytest.fixture(scope="module")
def missing(lab, chromium, extension):
    """Return another browser, for which there is no server extension."""
    missing = Worker.at(lab, chromium, prepare=extension.lead)
    missing.show_clusters()
    missing.sees("jupyter server extension enable workbench.lab")
    yield missing
    missing.leave()


@pytest.fixture(scope="module")
def other(missing, extension):
    """Return the other browser when the server extension was enabled."""
    extension.enabled = True
    missing.page.get_by_role("button", name="Try now").click()
    missing.sees("No clusters.")
    missing.complaints.clear()
    return missing


@pytest.fixture(scope="module")
def elsewhere(worker, other):
    """Start a cluster as a user does in a terminal."""
    workbench("start", "2", "--name", NAME)
    yield NAME
    end_clusters(NAME)


def test_where_the_server_extension_is_not_enabled_the_panel_says_how_to_enable_it(missing, shot):
    missing.page.get_by_role("button", name="Try now").click()
    missing.sees("does not have the server extension")
    assert missing.page.locator(PANEL).get_by_role("button", name="New cluster").first.is_disabled()
    shot(missing.page, "extension-missing")


@pytest.mark.usefixtures("failing_worlds")
def test_a_start_that_fails_tells_why_in_the_form_and_once_more_in_the_panel(other, shot):
    other.do("mpi-workbench:new-cluster")
    other.fill(scheduler="local", ranks="2", name="broken")
    other.starter().click()

    trouble = other.form().get_by_role("alert")
    trouble.get_by_text("cluster 'broken' did not start").wait_for()
    assert "no-such-option" in trouble.locator("pre").inner_text()
    assert other.starter().is_enabled()
    assert other.field("ranks").input_value() == "2"
    shot(other.page, "extension-failed")

    other.close_form()
    failed = other.page.locator(f"{PANEL} .wb-Start")
    failed.get_by_text("start failed").wait_for()
    failed.get_by_role("button", name="Dismiss").click()
    failed.wait_for(state="detached")
    assert other.faults() == []


def test_a_notebook_shows_the_dashboard_of_its_cluster_live_and_nobody_else(worker, inside, lab, chromium, shot):
    inside.sees("2 of 2")
    inside.moves()
    shot(worker.page, "lab")

    with worker.page.context.expect_page() as opened:
        worker.page.get_by_role("link", name="open the dashboard in a new tab").click()
    tab = Worker.of(opened.value)
    tab.painted()
    tab.sees("2 of 2")
    tab.moves()
    assert urlsplit(tab.page.url).path == f"{BASE}workbench/dashboard/lab/"
    frame = worker.page.locator("iframe[title=dashboard]")
    assert frame.get_attribute("src") == urlsplit(tab.page.url).path

    stranger = chromium.new_context()
    refused = stranger.request.get(tab.page.url, max_redirects=0)
    assert (refused.status, urlsplit(refused.headers["location"]).path) == (302, f"{BASE}login")
    stranger.close()

    assert worker.faults() + tab.faults() == []
    assert worker.elsewhere(lab) + tab.elsewhere(lab) == []
    tab.page.close()


def test_a_cluster_of_a_terminal_appears_by_itself_in_every_browser(worker, other, elsewhere):
    for each in (worker, other):
        each.card(elsewhere).get_by_text("2 ranks", exact=True).wait_for()
        assert each.faults() == []


def test_a_cluster_that_is_stopped_in_one_browser_is_gone_in_every_one_and_its_dashboard_says_so(
    worker, inside, other, started_by_server, lab
):
    record = registry.read("lab")

    other.press("lab", "stop")
    other.answer("Stop")

    inside.sees("has ended")
    for each in (worker, other):
        each.card("lab").wait_for(state="detached")
        assert each.faults() == []
        assert each.elsewhere(lab) == []
    assert not ClusterFolder.of(record).owns_lease()


def test_what_the_server_has_started_ends_with_it_and_clusters_are_there_again_when_it_is_back(
    worker, other, elsewhere, started_by_server, lab
):
    lab.end()

    until("all that it has started has ended", lambda: all(map(gone, started_by_server)))
    for each in (worker, other):
        each.sees("There is no connection to the server")
        assert each.card(elsewhere).is_visible()

    lab.start()

    for each in (worker, other):
        each.card(elsewhere).get_by_text("ready", exact=True).wait_for()
        each.page.get_by_text("There is no connection to the server").wait_for(state="detached")
