"""A cluster through a live Slurm, by the JupyterLab extension in a browser, as under a hub: no page may be framed."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from browser.chromium import running_chromium
from browser.evidence import keep
from browser.lab import Lab, Worker, end_clusters
from support.processes import until

pytestmark = pytest.mark.in_order

NAME = "lab-slurm"
FORBID = """--ServerApp.tornado_settings={'headers': {'Content-Security-Policy': "frame-ancestors 'none'"}}"""


@pytest.fixture(scope="module")
def lab(slurm, tmp_path_factory):
    lab = Lab(tmp_path_factory.mktemp("lab"), FORBID, base="/")
    yield lab
    end_clusters(NAME)
    lab.end()


@pytest.fixture(scope="module")
def worker(lab):
    with running_chromium() as chromium:
        worker = Worker.at(lab, chromium)
        worker.show_clusters()
        yield worker
        worker.leave()


@pytest.fixture(scope="module")
def before(slurm):
    """Submit a job that has all nodes, for so long that Slurm expects the cluster on this day."""
    job = slurm.submit("sleep 4711", "--nodes=4", "--exclusive", "--time=40")
    yield job
    if job in slurm.jobs():
        slurm.run("scancel", job)


@pytest.fixture(scope="module")
def job(slurm, worker, before):
    """Start a cluster in the form, and return its job."""
    worker.do("mpi-workbench:new-cluster")
    worker.fill(scheduler="slurm", ranks="2", nodes="2", walltime="20 minutes", name=NAME)
    worker.script("#SBATCH --nodes=2")
    worker.form().locator(".wb-Verdict", has_text="slurm reports: would").wait_for()
    in_both_themes(worker, "form")
    worker.starter().click()
    worker.card(NAME).get_by_text("queued", exact=True).wait_for()
    (job,) = set(slurm.jobs()) - {before}
    return job


@pytest.fixture(scope="module")
def running(slurm, worker, before, job):
    """Let the cluster have its nodes, and return its card."""
    slurm.run("scancel", before)
    card = worker.card(NAME)
    card.get_by_text("2 ranks", exact=True).wait_for()
    return card


def in_both_themes(worker, name):
    """Keep pictures of JupyterLab, one in each theme."""
    for theme in ("Dark", "Light"):
        worker.wear(theme)
        keep(worker.page, f"{name}-{theme.lower()}")


def test_a_cluster_of_the_form_waits_in_the_queue_and_says_why(worker, job):
    worker.form().get_by_text(f"Cluster {NAME}: queued · reason: ").wait_for()
    worker.card(NAME).get_by_text("reason: ").wait_for()
    worker.card(NAME).get_by_text(f"slurm · job {job} · 2 nodes").wait_for()
    in_both_themes(worker, "queued")


def test_it_starts_as_soon_as_there_are_nodes_and_tells_what_is_left_of_its_walltime(worker, running):
    worker.form().wait_for(state="detached")
    running.get_by_text("of walltime left").wait_for()


def test_where_frames_are_forbidden_a_dashboard_is_a_page_of_the_browser_and_lives(worker, lab, running):
    with worker.page.context.expect_page() as opened:
        worker.press(NAME, "dashboard")
        # before the dashboard, which may take longer than this is shown
        worker.sees("Dashboards open in tabs of the browser: this server does not allow pages in frames")
    dashboard = worker.of(opened.value)
    dashboard.painted()

    dashboard.sees("2 of 2")
    dashboard.moves()
    # without a base URL, for JupyterLab is at the root of this server
    assert urlsplit(dashboard.page.url).path == f"/workbench/dashboard/{NAME}/"
    assert worker.page.locator("iframe").count() == 0
    assert dashboard.faults() == []
    assert worker.elsewhere(lab) + dashboard.elsewhere(lab) == []
    dashboard.page.close()


def test_the_tab_of_a_dashboard_that_comes_back_has_a_link_where_frames_are_forbidden(worker, running):
    worker.do("mpi-workbench:dashboard", name=NAME, isRestored=True)

    worker.sees("This server does not allow pages in frames.")
    with worker.page.context.expect_page() as opened:
        worker.page.locator(".wb-DashboardTab").get_by_text("Open the dashboard in a tab of the browser").click()
    opened.value.close()


def test_a_cluster_that_is_stopped_is_gone_from_the_panel_and_from_the_queue(slurm, worker, job, running):
    worker.press(NAME, "stop")
    worker.answer("Stop")

    running.wait_for(state="detached")
    until("the job has ended", lambda: job not in slurm.jobs())
    assert worker.faults() == []
