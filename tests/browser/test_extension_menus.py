"""What JupyterLab's own menus, notebooks and keys do with clusters; none of these clusters runs."""

from __future__ import annotations

import json
import shutil
import sys
import time
import venv
from pathlib import Path

import pytest
from jupyter_core.paths import jupyter_data_dir

from browser.lab import Worker, forget, make

COLORS = ["red", "green", "yellow", "blue", "magenta", "cyan"]
LOG = (
    "".join(f"\x1b[1;3{number}m{color}\x1b[0m " for number, color in enumerate(COLORS, 1))
    + "mpi://10.0.0.1:5 <b>\n 10 %\r 20 %\nend of the log"
)
# All commands, with their labels and the schemas of what they take.
COMMANDS = """async () => Promise.all(
  jupyterapp.commands.listCommands().filter(its => its.startsWith("mpi-workbench:")).map(async its =>
    [its, jupyterapp.commands.label(its), (await jupyterapp.commands.describedBy(its)).args?.properties]
  )
)"""
TOUCH = """head => {
  const { x, y } = head.getBoundingClientRect()
  const point = { bubbles: true, pointerType: "touch", button: 0, buttons: 1 }
  head.dispatchEvent(new PointerEvent("pointerdown", { ...point, clientX: x, clientY: y }))
  head.dispatchEvent(new PointerEvent("pointermove", { ...point, clientX: x, clientY: y + 50 }))
  head.dispatchEvent(new PointerEvent("pointerup", { ...point, buttons: 0, clientX: x, clientY: y + 50 }))
  return document.querySelector(".wb-Dragged") !== null
}"""


@pytest.fixture(scope="module")
def clusters():
    made = [make("first", LOG), make("second", ends=time.time() + 3600)]
    yield [record.name for record in made]
    for record in made:
        forget(record)


@pytest.fixture(scope="module")
def stranger(lab):
    """Return a notebook whose kernel is said to run another language."""
    folder = Path(jupyter_data_dir(), "kernels", "stranger")
    folder.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (folder / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "Stranger", "language": "R"}))
    lab.write("stranger.ipynb", [""], kernel="stranger")
    yield "stranger.ipynb"
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def bare(lab, tmp_path_factory):
    """Return notebooks whose kernel has an environment without the workbench."""
    environment = tmp_path_factory.mktemp("bare")
    venv.create(environment, with_pip=False)
    command = [sys.executable, "-m", "ipykernel_launcher", "-f"]
    start = f"import os, sys; os.execv({sys.executable!r}, {command} + sys.argv[1:])"
    folder = Path(jupyter_data_dir(), "kernels", "bare")
    folder.mkdir(parents=True)
    argv = [str(environment / "bin/python"), "-c", start, "{connection_file}"]
    (folder / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "Bare", "language": "python"}))
    names = ["inserted.ipynb", "dropped.ipynb"]
    for name in names:
        lab.write(name, [""], kernel="bare")
    yield names
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def worker(lab, chromium, clusters, stranger, bare):
    for name in ("python", "one", "other"):
        lab.write(f"{name}.ipynb", [""])
    worker = Worker.at(lab, chromium)
    worker.show_clusters()
    for name in clusters:
        worker.card(name).wait_for()
    yield worker
    assert worker.faults() == []
    assert worker.elsewhere(lab) == []
    worker.leave()


@pytest.fixture
def menu(worker):
    """Return the menu that is open, and close it."""
    yield worker.page.locator(".lm-Menu")
    worker.page.keyboard.press("Escape")


def test_the_context_menu_of_a_card_is_about_its_cluster(worker, menu, shot):
    for name in ("first", "second"):
        worker.card(name).get_by_text("2 ranks", exact=True).click(button="right")
        menu.get_by_text(f"Stop Cluster {name}…", exact=True).wait_for()
        shot(worker.page, f"extension-menu-{name}")
        assert f"Restart Ranks of Cluster {name}…" in menu.inner_text()
        worker.page.keyboard.press("Escape")

    worker.card("first").click(button="right")
    menu.get_by_text("Stop Cluster first…", exact=True).click()

    worker.dialog().get_by_text("Stop first?").wait_for()
    worker.answer("Cancel")


def test_the_menu_of_a_card_whose_cluster_ends_is_about_no_other_cluster(worker, menu):
    record = make("brief")
    worker.card("brief").click(button="right")
    entry = menu.get_by_text("Stop Cluster brief…", exact=True)
    entry.wait_for()

    forget(record)
    worker.card("brief").wait_for(state="detached")
    worker.page.wait_for_function("() => !jupyterapp.commands.isEnabled('mpi-workbench:stop', { isCard: true })")
    entry.click()

    assert worker.page.evaluate("() => document.querySelector('.jp-Dialog')") is None


def test_the_menus_of_jupyterlab_have_the_panel_and_a_new_cluster(worker, menu):
    page = worker.page
    page.get_by_role("menuitem", name="View", exact=True).click()
    menu.get_by_text("Show MPI Clusters", exact=True).wait_for()
    page.keyboard.press("Escape")

    page.get_by_role("menuitem", name="File", exact=True).click()
    menu.get_by_text("New", exact=True).hover()
    menu.get_by_text("MPI Cluster…", exact=True).click()

    worker.field("ranks").wait_for()
    worker.close_form()


def test_commands_name_the_cluster_that_they_mean_and_describe_what_they_take(worker):
    worker.card("first").get_by_role("heading").click()
    worker.page.wait_for_function("() => jupyterapp.commands.label('mpi-workbench:stop') === 'Stop Cluster first…'")

    for command, label, arguments in worker.page.evaluate(COMMANDS):
        assert arguments, command
        assert ("name" in arguments) is label.removesuffix("…").endswith(" first"), (command, label)


def test_a_notebook_of_another_language_takes_no_code(worker, stranger):
    worker.open_notebook(stranger)
    worker.press("first", "insert-code")

    worker.sees(f"The kernel of {stranger} runs R")
    assert worker.source(0) == ""


def _drop(worker, name):
    """Drop the card of a cluster on the notebook in front."""
    page = worker.page
    place = page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-CodeCell").first
    worker.card(name).get_by_role("heading").hover()
    page.mouse.down()
    box = place.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, steps=10)
    page.locator(".wb-Dragged").wait_for()
    page.mouse.up()
    page.locator(".wb-Dragged").wait_for(state="detached")


def test_a_card_cannot_be_dropped_on_a_notebook_of_another_language(worker, stranger):
    worker.open_notebook(stranger)

    _drop(worker, "first")

    worker.sees(f"The kernel of {stranger} runs R")
    assert worker.page.evaluate("() => notebook.widgets.length") == 1


def test_whoever_puts_code_where_no_workbench_is_installed_is_warned(worker, bare):
    inserted, dropped = bare
    worker.open_notebook(inserted)
    worker.press("first", "insert-code")
    worker.sees(f"The code fails in {inserted}: its kernel Bare has no workbench")
    assert "MPICluster" in worker.source(0)

    worker.open_notebook(dropped)
    _drop(worker, "first")
    worker.sees(f"The code fails in {dropped}: its kernel Bare has no workbench")
    assert worker.page.evaluate("() => notebook.widgets.length") == 2


def test_who_inserts_code_is_told_into_which_notebook(worker):
    worker.open_notebook("python.ipynb")
    worker.do("mpi-workbench:logs", name="second")
    worker.page.get_by_label("Log head of second").wait_for()

    worker.press("first", "insert-code")

    worker.sees("The code that connects to first is in python.ipynb.")
    assert "MPICluster" in worker.source(0)


def test_each_notebook_has_the_cluster_that_was_chosen_last_beside_it(worker):
    chosen = worker.page.locator(".wb-Card.wb-mod-chosen")
    for notebook, name in (("one.ipynb", "first"), ("other.ipynb", "second")):
        worker.open_notebook(notebook)
        worker.card(name).get_by_role("heading").click()
        chosen.get_by_role("heading", name=name).wait_for()

    worker.page.get_by_role("tab", name="one.ipynb").click()

    chosen.get_by_role("heading", name="first").wait_for()


def test_a_warning_comes_as_soon_as_the_settings_have_it_come(worker):
    worker.do("settingeditor:open", query="MPI Clusters")
    minutes = worker.page.locator('input[id$="_warnMinutes"]')
    minutes.wait_for()
    worker.card("second").get_by_text("of walltime left").wait_for()
    assert worker.card("second").locator(".wb-mod-soon").count() == 0

    minutes.fill("90")

    worker.card("second").locator(".wb-mod-soon").wait_for()
    worker.sees("The job of cluster second ends in")


def test_a_finger_on_a_card_drags_nothing(worker):
    assert not worker.card("first").locator(".wb-Card-head").evaluate(TOUCH)


def test_a_log_is_shown_in_its_colors_and_downloaded_as_it_is(worker, shot):
    worker.press("first", "logs")
    log = worker.page.get_by_label("Log head of first")
    log.get_by_text("end of the log").wait_for()

    assert log.inner_text().splitlines() == [" ".join([*COLORS, "mpi://10.0.0.1:5 <b>"]), " 20 %", "end of the log"]
    assert [log.locator(f".wb-mod-{color}").inner_text() for color in COLORS] == COLORS
    assert log.locator("a").count() == 0
    for theme in ("Dark", "Light"):
        worker.wear(theme)
        shot(worker.page, f"extension-log-colors-{theme.lower()}")
    with worker.page.expect_download() as download:
        worker.page.get_by_role("link", name="Download").locator("visible=true").click()
    assert download.value.suggested_filename == "first-head.log"
    assert Path(download.value.path()).read_bytes() == f"{LOG}\n".encode()
