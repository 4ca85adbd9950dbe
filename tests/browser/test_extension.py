"""A cluster in JupyterLab from its start in the form to its end, by the buttons of its card."""

from __future__ import annotations

import re
import subprocess
from uuid import uuid4

import pytest

from browser.lab import BASE, Worker, end_clusters, forget, make
from workbench.deploy import registry
from workbench.host.processes import ProcessId

pytestmark = pytest.mark.in_order

NAME = "from-form"
# The ranks are not to take all cores from the browser.
TRAIN = """
from pathlib import Path
import time
import warnings
import dask.array as da
from workbench import place
from workbench.ml import KMeans
X = place(da.random.default_rng(0).random((2_000, 8), chunks=(1_000, 8)), client=client)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the fit does not converge, because it must last
    while not Path("enough").exists():
        trained = KMeans(8, engine="mpi", random_state=0, max_iter=5, tol=0).fit(X)
        time.sleep(0.5)
trained.cluster_centers_.shape
"""
NOTEBOOK = ["", "len(client.nthreads())", TRAIN, "'the last cell'"]


@pytest.fixture(scope="module")
def worker(lab, chromium):
    lab.write("extension.ipynb", NOTEBOOK)
    worker = Worker.at(lab, chromium)
    worker.show_clusters()
    yield worker
    end_clusters(NAME)
    worker.leave()


@pytest.fixture(scope="module")
def cluster(worker):
    """Start a cluster in the form, and return its name when it is ready."""
    worker.page.get_by_role("button", name="New cluster").first.click()
    worker.fill(ranks="2", name=NAME)
    worker.starter().click()
    worker.form().wait_for(state="detached")
    worker.card(NAME).get_by_text("2 ranks").wait_for()
    return NAME


@pytest.fixture(scope="module")
def client(worker, cluster):
    """Have a notebook whose `client` is one of the cluster, by the button of its card."""
    worker.open_notebook("extension.ipynb")
    worker.choose_cell(0)
    worker.press(cluster, "insert-code")
    worker.page.wait_for_function("() => notebook.widgets[0].model.sharedModel.source.includes('client')")
    worker.run(0)


@pytest.fixture
def another():
    """Return the name of a cluster whose head is this process."""
    record = make("another")
    yield record.name
    forget(record)


@pytest.fixture
def doomed():
    """Return the record of a cluster, and the process that stands for its head."""
    with subprocess.Popen(["sleep", "1000"]) as head:
        record = make("doomed", "the last words", ProcessId.of(head.pid))
        yield record, head
        head.kill()
    forget(record)


def test_the_panel_says_how_clusters_are_started_while_there_are_none(worker):
    worker.sees("No clusters.")
    worker.sees("workbench start 8")


def test_a_wrong_value_is_told_beside_its_field_and_nothing_starts(worker):
    worker.page.get_by_role("button", name="New cluster").first.click()
    error = worker.form().locator("#wb-new-ranks-error")

    worker.fill(scheduler="local", ranks="two", name=NAME)

    error.get_by_text("two").wait_for()
    assert worker.field("ranks").get_attribute("aria-invalid") == "true"
    assert frame_of(worker, "ranks") != frame_of(worker, "name")
    assert worker.starter().is_disabled()

    worker.fill(ranks="2")

    worker.script(f"workbench.head {NAME}")
    assert error.inner_text() == ""
    assert frame_of(worker, "ranks") == frame_of(worker, "name")
    assert worker.starter().is_enabled()
    worker.close_form()
    assert worker.card(NAME).count() == 0


def test_a_cluster_of_the_form_becomes_ready_and_is_that_of_the_status_bar(worker, cluster):
    card = worker.card(cluster)
    card.get_by_text("ready", exact=True).wait_for()
    assert card.get_by_role("meter").get_attribute("aria-valuetext") == "2 of 2 ranks"
    worker.sees(f"Cluster {cluster} is ready: 2 ranks")
    worker.page.locator(".wb-Status").get_by_text(f"{cluster} · 2 ranks").wait_for()
    for label, value in (("CPU", r"\d+ %"), ("Memory", r"[\d.]+ [KMG]iB"), ("Clients", "none")):
        card.get_by_role("term").get_by_text(label, exact=True).wait_for()
        card.get_by_role("definition").filter(has_text=re.compile(f"^{value}$")).wait_for()
    scale, restart, stop = (
        card.locator(f'[data-command$=":{command}"]').bounding_box()["x"] for command in ("scale", "restart", "stop")
    )
    assert restart - scale > 1.5 * (stop - restart), "what ends work is apart from all else"


def test_a_notebook_becomes_its_client_by_a_button(worker, client):
    assert worker.run(1) == "{'text/plain': '2'}"


def test_a_card_that_is_dragged_into_a_notebook_leaves_its_code_there(worker, cluster, client):
    page = worker.page
    worker.open_notebook("extension.ipynb")
    place = page.locator(".jp-Notebook .jp-CodeCell").nth(3)
    worker.card(cluster).get_by_role("heading").hover()

    page.mouse.down()
    box = place.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, steps=10)
    page.locator(".wb-Dragged").wait_for()
    page.mouse.up()

    page.wait_for_function("cells => notebook.widgets.length > cells", arg=len(NOTEBOOK))
    assert f'MPICluster.attach("{cluster}")' in worker.source(3)


def test_a_number_of_ranks_that_cannot_be_is_refused_in_words_until_they_are_dismissed(worker, cluster, shot):
    scale(worker, cluster, 1_000_000)

    error = worker.card(cluster).get_by_role("alert")
    error.get_by_text("is not valid").wait_for()
    worker.card(cluster).get_by_text("2 ranks", exact=True).wait_for()
    shot(worker.page, "extension-error")
    worker.page.get_by_role("button", name=f"Dismiss the error of {cluster}").click()
    error.wait_for(state="detached")


def test_who_follows_a_log_sees_the_cluster_grow(worker, cluster):
    worker.press(cluster, "logs")
    log = worker.page.get_by_role("log")
    log.get_by_text("2 ranks").first.wait_for()
    assert worker.page.get_by_label("Log file").input_value() == "head"
    before = log.inner_text()

    scale(worker, cluster, 3)

    worker.card(cluster).get_by_text("3 ranks", exact=True).wait_for()
    worker.page.wait_for_function(
        "before => document.querySelector('[role=log]').innerText.length > before", arg=len(before)
    )
    worker.page.get_by_label("Log file").select_option("rank-1")
    worker.page.get_by_label("Log rank-1 of").wait_for()


def test_the_card_that_was_clicked_last_is_that_of_the_status_bar(worker, cluster, another):
    status = worker.page.locator(".wb-Status")
    worker.show_clusters()

    worker.card(another).get_by_role("heading").click()
    status.get_by_text(f"{another} · 2 ranks").wait_for()
    assert worker.card(another).get_attribute("aria-current") == "true"

    worker.card(cluster).get_by_role("heading").click()
    status.get_by_text(f"{cluster} · {ranks_of(cluster)} ranks").wait_for()
    assert worker.card(another).get_attribute("aria-current") is None


def test_a_training_in_a_notebook_is_seen_in_the_dashboard_tab(worker, lab, cluster, client):
    worker.begin(2)
    worker.press(cluster, "dashboard")

    inside = worker.dashboard(cluster)
    inside.sees(f"{ranks_of(cluster)} of {ranks_of(cluster)}")
    inside.turn_to("Training")
    inside.page.get_by_text("KMeans", exact=True).first.wait_for()
    inside.moves()

    (lab.folder / "enough").touch()
    assert worker.ended() == "{'text/plain': '(8, 8)'}"


def test_every_part_looks_as_jupyterlab_does(worker, cluster, shot):
    page = worker.page
    worker.do("mpi-workbench:dashboard", name=cluster)
    inside = worker.dashboard(cluster)
    inside.turn_to("Cores")
    page.get_by_role("tab", name=f"{cluster} · Cores", exact=True).wait_for()
    worker.do("apputils:change-theme", theme="JupyterLab Dark")
    inside.page.wait_for_url("**theme=dark*")
    inside.painted()
    inside.sees("Every core now")
    page.locator("#jupyterlab-splash").wait_for(state="detached")
    shot(page, "extension-dashboard")
    worker.do("mpi-workbench:logs", name=cluster)
    page.get_by_role("log").get_by_text("rank").first.wait_for()
    shot(page, "extension-logs")
    page.get_by_role("tab", name=f"{cluster}: logs").locator(".lm-TabBar-tabCloseIcon").click()
    page.get_by_role("log").wait_for(state="detached")
    worker.do("mpi-workbench:logs", name=cluster)
    page.get_by_role("log").get_by_text("rank").first.wait_for()
    worker.do("mpi-workbench:new-cluster")
    worker.fill(scheduler="local", ranks="none")
    worker.form().locator("#wb-new-ranks-error").get_by_text("none").wait_for()
    shot(page, "extension-form-wrong")
    worker.fill(ranks="2")
    worker.script(": 2 ranks of")
    shot(page, "extension-form")
    worker.close_form()

    worker.do("apputils:change-theme", theme="JupyterLab Light")
    page.locator('iframe[src*="theme=light"]').wait_for(state="attached")


def test_what_was_open_and_chosen_comes_back_with_the_page(worker, cluster, another):
    def is_kept(request):
        parts = (
            f'"current":"mpi-workbench-logs:{cluster}"',
            '"file":"rank-1"',
            '"view":"page=cores',
            f'"mpi-workbench:chosen":"{cluster}"',
            '"ranks":"7"',
        )
        return request.method == "PUT" and all(part in request.post_data for part in parts)

    worker.do("mpi-workbench:dashboard", name=cluster)
    inside = worker.dashboard(cluster)
    # the theme has changed while it was not seen
    inside.page.wait_for_url("**theme=light*")
    inside.painted()
    inside.sees("Every core now")
    worker.do("mpi-workbench:new-cluster")
    worker.fill(ranks="7")
    with worker.page.expect_response(lambda its: is_kept(its.request)):
        worker.do("mpi-workbench:logs", name=cluster)
        worker.page.get_by_label("Log file").select_option("rank-1")

    worker.page.reload()
    worker.restored()

    worker.page.get_by_label("Log rank-1 of").wait_for()
    worker.card(another).wait_for(state="attached")
    worker.page.locator(".wb-Status").get_by_text(f"{cluster} · ").wait_for()
    worker.page.get_by_role("tab", name=f"{cluster} · Cores", exact=True).click()
    inside = worker.dashboard(cluster)
    inside.sees("Every core now")
    inside.moves()
    worker.page.get_by_role("tab", name="New Cluster").click()
    worker.script(": 7 ranks of")
    worker.close_form()


def test_jupyterlab_comes_back_with_its_tabs_while_the_server_does_not_answer_for_clusters(worker, cluster):
    silent = "**/workbench/api/**"
    worker.page.route(silent, lambda _: None)
    worker.page.reload()
    worker.restored()

    worker.page.get_by_role("tab", name=f"{cluster} · Cores", exact=True).wait_for()

    worker.page.unroute(silent)
    worker.card(cluster).get_by_text("ready", exact=True).wait_for(state="attached")


def test_pulses_are_asked_for_of_the_clusters_that_are_seen_and_no_others(worker, cluster):
    with worker.page.expect_websocket(lambda socket: "/workbench/api/" in socket.url) as opened:
        worker.page.reload()
        worker.restored()
    worker.show_clusters()

    for command, visible in (
        ("application:toggle-left-area", f'["{cluster}"]'),
        ("statusbar:toggle", "false"),
        ("statusbar:toggle", f'["{cluster}"]'),
        ("application:toggle-left-area", "true"),
    ):
        said = f'{{"visible":{visible}}}'
        with opened.value.expect_event("framesent", lambda sent, said=said: sent == said):
            worker.do(command)


def test_a_cluster_that_is_stopped_is_asked_about_first_and_then_gone(worker, cluster):
    # A dashboard that still loads would complain that its cluster is gone.
    worker.page.get_by_role("tab", name=f"{cluster} · Cores", exact=True).click()
    worker.dashboard(cluster)
    worker.show_clusters()
    worker.press(cluster, "stop")
    worker.dialog().get_by_text("data in memory will be lost").wait_for()
    worker.answer("Cancel")
    worker.dialog().wait_for(state="detached")
    assert worker.card(cluster).get_by_text("ready", exact=True).is_visible()

    worker.press(cluster, "stop")
    worker.answer("Stop")

    worker.card(cluster).wait_for(state="detached")
    worker.sees("No clusters.")
    ended = worker.page.locator(f'[data-ended="{cluster}"]')
    ended.get_by_text("the user has stopped it").wait_for(state="attached")
    assert worker.page.get_by_text(f"Cluster {cluster} has ended:").count() == 0, "who stops it need not be told"


def test_the_tab_of_a_dashboard_says_that_its_cluster_has_ended(worker, cluster):
    tab = worker.page.get_by_role("tab", name=f"{cluster} · Cores", exact=True)
    tab.click()
    worker.sees(f"Cluster {cluster} has ended.")

    worker.page.get_by_role("button", name="Close this tab").click()

    tab.wait_for(state="detached")


def test_of_two_pages_of_a_browser_the_one_that_was_looked_at_last_tells_news(worker, lab, doomed):
    record, head = doomed
    last = Worker.of(worker.page.context.new_page())
    last.page.goto(f"{lab.address}lab/workspaces/{uuid4().hex}")
    last.restored()
    last.show_clusters()
    for each in (worker, last):
        each.card(record.name).wait_for(state="attached")

    head.kill()
    head.wait()

    gone = f"process {head.pid} on {record.process.host}"
    for each in (worker, last):
        each.page.locator(f'[data-ended="{record.name}"]').get_by_text(gone).wait_for(state="attached")
    last.sees(f"Cluster {record.name} has failed: ")
    assert worker.page.get_by_text(f"Cluster {record.name} has failed: ").count() == 0
    last.page.close()


def test_a_cluster_whose_head_is_killed_is_told_with_its_reason_and_its_logs(worker, doomed, shot):
    record, head = doomed
    gone = f"its head, process {head.pid} on {record.process.host}, was killed or crashed"
    worker.show_clusters()
    worker.card(record.name).get_by_text("2 ranks", exact=True).wait_for()

    head.kill()
    head.wait()

    worker.sees(f"Cluster {record.name} has failed: {gone}")
    ended = worker.page.locator(f'[data-ended="{record.name}"]')
    ended.get_by_text(gone).wait_for()
    worker.card(record.name).wait_for(state="detached")
    for theme in ("Dark", "Light"):
        worker.wear(theme)
        shot(worker.page, f"extension-ended-{theme.lower()}")
    # Another cluster has its name meanwhile.
    successor = make("doomed", "the log of the successor")
    try:
        ended.get_by_role("button", name="Logs of doomed").first.click()
        worker.page.get_by_role("log").get_by_text("the last words").wait_for()
        worker.sees("The cluster has ended; this is its last log.")
    finally:
        forget(successor)


def test_nothing_went_wrong_in_the_browser_and_nobody_else_was_asked(worker, lab):
    assert worker.faults() == []
    assert worker.elsewhere(lab) == []
    assert any(f"{BASE}workbench/api/events" in url for url in worker.requests)


def ranks_of(name):
    """Return how many ranks a cluster has now."""
    return registry.read(name).total


def frame_of(worker, field):
    """Return the color of the border of a field."""
    return worker.field(field).evaluate("its => getComputedStyle(its).borderTopColor")


def scale(worker, name, ranks):
    """Ask for another number of ranks by the button of the card."""
    worker.press(name, "scale")
    worker.dialog().get_by_role("spinbutton").fill(str(ranks))
    worker.answer("Scale")
