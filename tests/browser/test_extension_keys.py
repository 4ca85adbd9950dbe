"""A cluster from its start to its end by keys alone."""

from __future__ import annotations

import pytest
from support.processes import until

from browser.lab import PANEL, Worker, end_clusters
from workbench.deploy import registry

pytestmark = pytest.mark.in_order

NAME = "by-keys"
# More than there are places for the focus in the panel or the form.
ENOUGH = 20
# Shortcuts come after the page.
_HAS_KEYS = "() => jupyterapp.commands.keyBindings.some(its => its.command === 'mpi-workbench:show')"


@pytest.fixture(scope="module")
def worker(lab, chromium):
    worker = Worker.at(lab, chromium)
    worker.page.wait_for_function(_HAS_KEYS)
    # it takes the focus when it comes, and a palette that is open by then closes
    worker.page.locator(".jp-Launcher:focus-within").wait_for()
    yield worker
    end_clusters(NAME)
    worker.leave()


@pytest.fixture
def panel(worker):
    """Open the panel by its keys, wherever the focus is."""
    worker.page.keyboard.press("Control+Alt+c")
    focused(worker.page.locator(PANEL).get_by_role("button", name="New cluster", exact=True)).wait_for()
    return worker.page.locator(PANEL)


@pytest.fixture(scope="module")
def cluster(worker):
    """Start a cluster, and return its name."""
    keyboard = worker.page.keyboard
    keyboard.press("Control+Alt+n")
    focused(worker.field("scheduler")).wait_for()
    for field, value in (("name", NAME), ("ranks", "2")):
        go(worker, worker.field(field))
        keyboard.type(value)
    worker.script(f"Cluster {NAME}: 2 ranks")
    keyboard.press("Enter")
    worker.form().wait_for(state="detached")
    return NAME


def test_the_command_palette_opens_the_panel(worker):
    assert worker.page.locator(PANEL).is_hidden()

    worker.page.keyboard.press("Control+Shift+c")
    focused(worker.page.locator(".lm-CommandPalette-input")).wait_for()
    worker.page.keyboard.type("show mpi clusters")
    worker.page.locator(".lm-CommandPalette-item.lm-mod-active", has_text="Show MPI Clusters").wait_for()
    worker.page.keyboard.press("Enter")

    worker.page.locator(PANEL).wait_for()


def test_enter_leads_to_the_first_wrong_value_and_nothing_starts(worker, panel):
    keyboard = worker.page.keyboard
    keyboard.press("Enter")
    focused(worker.field("scheduler")).wait_for()
    go(worker, worker.field("ranks"))
    keyboard.type("two")
    go(worker, worker.starter())

    keyboard.press("Enter")

    focused(worker.field("ranks")).wait_for()
    assert worker.field("ranks").get_attribute("aria-invalid") == "true"
    keyboard.press("Alt+w")
    worker.form().wait_for(state="detached")
    worker.sees("No clusters.")


def test_a_cluster_is_started_in_the_form(worker, cluster):
    worker.card(cluster).get_by_text("2 ranks", exact=True).wait_for()


def test_a_dashboard_is_opened_and_left_again(worker, cluster, panel):
    go_to_button(worker, "dashboard")
    worker.page.keyboard.press("Enter")

    worker.dashboard(cluster).sees("2 of 2")
    worker.page.keyboard.press("Control+Alt+c")
    focused(panel.get_by_role("button", name="New cluster", exact=True)).wait_for()


def test_ranks_are_restarted_once_that_is_confirmed(worker, cluster, panel):
    for answer in ("Escape", "Enter"):
        go_to_button(worker, "restart")
        worker.page.keyboard.press("Enter")
        worker.dialog().get_by_text("start over").wait_for()
        focused(worker.dialog().get_by_role("button", name="Restart")).wait_for()
        assert registry.read(cluster).world.starts == 1
        worker.page.keyboard.press(answer)
        worker.dialog().wait_for(state="detached")

    until("the world is another one", lambda: registry.read(cluster).world.starts == 2)
    until("its ranks are back", lambda: registry.read(cluster).state == "ready")
    worker.card(cluster).get_by_text("ready", exact=True).wait_for()
    worker.card(cluster).get_by_text("2 ranks", exact=True).wait_for()
    focused(button(worker, "restart")).wait_for()  # though it could not be pressed meanwhile


def test_a_cluster_is_stopped_once_that_is_confirmed(worker, cluster, panel):
    go_to_button(worker, "stop")
    worker.page.keyboard.press("Enter")
    worker.dialog().get_by_text("data in memory will be lost").wait_for()
    focused(worker.dialog().get_by_role("button", name="Stop")).wait_for()

    worker.page.keyboard.press("Enter")

    worker.card(cluster).wait_for(state="detached")
    until("it has ended", lambda: cluster not in registry.names())
    assert worker.faults() == []


def button(worker, command):
    """Return a button of the card, once it can be pressed."""
    return worker.card(NAME).locator(f'[data-command="mpi-workbench:{command}"][aria-disabled="false"]')


def go_to_button(worker, command):
    """Press Tab until the buttons of the card have the focus, which have one place for it, and then the arrow."""
    toolbar = worker.card(NAME).get_by_role("toolbar")
    go(worker, toolbar.locator("button[tabindex='0']"))
    assert toolbar.locator("button[tabindex='0']").count() == 1
    go(worker, button(worker, command), "ArrowRight")


def focused(place):
    return place.and_(place.page.locator(":focus"))


def go(worker, place, key="Tab"):
    """Press a key until a place has the focus."""
    place.wait_for()
    for _ in range(ENOUGH):
        if focused(place).count():
            return
        worker.page.keyboard.press(key)
    pytest.fail(f"{key} does not lead to {place}")
