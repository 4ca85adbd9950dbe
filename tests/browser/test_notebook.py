"""Clusters in Notebook 7, where each document has a separate page."""

from __future__ import annotations

from contextlib import suppress
from urllib.parse import urlsplit

import pytest
from playwright import sync_api
from support.patience import FACTOR
from support.processes import until

from browser.lab import BASE, Worker, end_clusters, workbench

pytestmark = pytest.mark.in_order

NAME = "of-notebook"
# Before it is ready Notebook would ask which kernel it shall run.
_RUN = """async () => {
  await jupyterapp.shell.currentWidget.sessionContext.ready
  await jupyterapp.commands.execute("notebook:run-cell")
}"""


@pytest.fixture(scope="module")
def worker(lab, chromium):
    lab.write("notebook.ipynb", [""])
    worker = Worker.at(lab, chromium, "notebooks/notebook.ipynb")
    yield worker
    end_clusters(NAME)
    worker.leave()


@pytest.fixture(scope="module")
def cluster(worker):
    workbench("start", "2", "--name", NAME)
    return NAME


def test_the_panel_is_in_the_view_menu(worker):
    entry = worker.page.get_by_role("menuitem", name="Show MPI Clusters")

    def chosen():
        worker.page.keyboard.press("Escape")
        worker.page.get_by_role("menuitem", name="View", exact=True).click()
        # The entries of extensions come with their settings, and close a menu that is open.
        with suppress(sync_api.TimeoutError):
            entry.click(timeout=1000 * FACTOR)
            return True

    until("the entry is in the menu", chosen)

    worker.sees("No clusters.")


def test_a_notebook_becomes_the_client_of_a_cluster_by_a_button(worker, cluster):
    worker.press(cluster, "insert-code")
    worker.page.locator(".jp-CodeCell").get_by_text(f'MPICluster.attach("{cluster}")').wait_for()

    worker.page.evaluate(_RUN)

    worker.card(cluster).get_by_role("definition").get_by_text("1", exact=True).wait_for()


def test_a_dashboard_is_a_page_of_the_browser_like_any_document(worker, cluster, lab):
    dashboard = worker.dashboard_page(cluster)

    dashboard.sees("2 of 2")
    dashboard.moves()
    assert urlsplit(dashboard.page.url).path == f"{BASE}workbench/dashboard/{cluster}/"
    assert dashboard.faults() == []
    assert dashboard.elsewhere(lab) == []


def test_a_dashboard_that_the_browser_blocks_is_reported(worker, cluster):
    worker.page.evaluate("() => { window.open = () => null }")

    worker.press(cluster, "dashboard")

    worker.sees("The browser has blocked the dashboard: allow pop-ups")


def test_the_form_for_a_new_cluster_is_below_the_notebook(worker, cluster, shot):
    worker.do("mpi-workbench:new-cluster")
    worker.fill(scheduler="local", ranks="2")

    worker.script(": 2 ranks of")
    worker.starter().click(trial=True)  # there is room for it
    shot(worker.page, "notebook-form")
    worker.close_form()


def test_logs_are_below_the_notebook(worker, cluster, lab, shot):
    worker.press(cluster, "logs")

    worker.page.get_by_role("log").get_by_text("rank").first.wait_for()
    shot(worker.page, "notebook")
    assert worker.faults() == []
    assert worker.elsewhere(lab) == []
