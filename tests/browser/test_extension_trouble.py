"""What JupyterLab tells of clusters that somebody starts elsewhere, that fail, or that it may not see."""

from __future__ import annotations

import pytest
from browser.lab import PANEL, Worker, end_clusters, started, workbench

NAME = "of-a-terminal"


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    with started(tmp_path_factory.mktemp("lab")) as lab:
        yield lab


@pytest.fixture
def worker(lab, chromium):
    worker = Worker.at(lab, chromium)
    worker.show_clusters()
    yield worker
    worker.leave()


@pytest.fixture
def elsewhere():
    """Start a cluster as somebody does in a terminal."""

    def start():
        workbench("start", "2", "--name", NAME)

    yield start
    end_clusters(NAME)


@pytest.mark.usefixtures("failing_worlds")
def test_a_start_that_fails_tells_why_in_the_dialog_and_once_more_in_the_panel(worker, shots):
    worker.do("workbench:new-cluster")
    worker.fill(scheduler="local", ranks="2", name="broken")
    worker.answer("Start")

    trouble = worker.dialog().get_by_role("alert")
    trouble.get_by_text("cluster 'broken' did not start").wait_for()
    assert "no-such-option" in trouble.locator("pre").inner_text()
    worker.dialog().locator(".jp-Dialog-footer").get_by_role("button", name="Start").and_(
        worker.page.locator(":enabled")
    ).wait_for()
    assert worker.dialog().locator("#wb-new-ranks").input_value() == "2"
    worker.page.screenshot(path=shots / "extension-failed.png")

    worker.answer("Cancel")
    failed = worker.page.locator(f"{PANEL} .wb-Start")
    failed.get_by_text("start failed").wait_for()
    failed.get_by_role("button", name="Dismiss").click()
    failed.wait_for(state="detached")
    assert worker.faults() == []


def test_a_cluster_of_a_terminal_appears_by_itself_in_every_browser(lab, chromium, worker, elsewhere):
    other = Worker.at(lab, chromium)
    other.show_clusters()
    both = (worker, other)

    elsewhere()

    for each in both:
        each.card(NAME).get_by_text("2 ranks", exact=True).wait_for()
    other.press(NAME, "stop")
    other.answer("Stop")
    for each in both:
        each.card(NAME).wait_for(state="detached")
        assert each.faults() == []
        assert each.elsewhere(lab) == []
    other.leave()


def test_clusters_are_there_again_after_the_server_was_away(tmp_path, chromium, elsewhere):
    elsewhere()
    with started(tmp_path) as lab:
        worker = Worker.at(lab, chromium)
        worker.show_clusters()
        worker.card(NAME).wait_for()
    worker.sees("There is no connection to the server")
    assert worker.card(NAME).is_visible()

    with started(tmp_path, port=lab.port):
        worker.card(NAME).get_by_text("ready", exact=True).wait_for()
        worker.page.get_by_text("There is no connection to the server").wait_for(state="detached")
        worker.leave()


def test_where_the_server_extension_is_not_enabled_the_panel_says_how_to_enable_it(tmp_path, chromium, shots):
    with started(tmp_path, enabled=False) as lab:
        worker = Worker.at(lab, chromium)
        worker.show_clusters()
        worker.sees("jupyter server extension enable workbench.server")
        worker.page.get_by_role("button", name="Try now").click()
        worker.sees("does not have the server extension")
        assert worker.page.locator(PANEL).get_by_role("button", name="New cluster").first.is_disabled()
        worker.page.screenshot(path=shots / "extension-missing.png")
        worker.leave()
