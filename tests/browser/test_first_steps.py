"""The first minutes of a user in JupyterLab: the first notebook starts a cluster and trains beside its dashboard."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import pytest

from browser.lab import Worker, end_clusters

pytestmark = pytest.mark.in_order

STORED = Path(__file__).parents[2] / "notebooks" / "01_start_here.ipynb"
# What the notebook has up to the first answer of the ranks: title, parameters, start, and a cell for every rank.
CELLS = 6
NAME = "flights"
# Moments that the dashboard has to show: a picture shows a training that has run for a while.
SEEN = 30 if "WORKBENCH_SHOTS" in os.environ else 1
# It takes long, so the test interrupts the cell.
TRAIN = """
import dask.array as da
from workbench import place
from workbench.ml import KMeans

X = place(da.random.default_rng(0).random((100_000, 16)))
for seed in range(1_000):
    KMeans(8, engine="mpi", random_state=seed).fit(X)
"""
# Where the tab of a dashboard is after a user has dragged it to the right half.
BESIDE = """() => {
  const { shell } = jupyterapp
  const tabs = [...shell.widgets("main")]
  const ref = tabs.find(its => its.content === notebook)
  shell.add(tabs.find(its => its.node.querySelector("iframe")), "main", { ref: ref.id, mode: "split-right" })
}"""


@pytest.fixture(scope="module")
def worker(lab, chromium):
    notebook = nbformat.read(STORED, 4)
    notebook.cells[CELLS:] = [nbformat.v4.new_code_cell(TRAIN.strip())]
    start = notebook.cells[3]
    start.source += f" --name {NAME}"
    nbformat.write(notebook, lab.folder / "start_here.ipynb")
    worker = Worker.at(lab, chromium)
    worker.page.set_viewport_size({"width": 1400, "height": 1120})
    # Notifications would cover cells in the pictures.
    worker.page.add_style_tag(content=".Toastify { display: none }")
    worker.open_notebook("start_here.ipynb")
    yield worker
    end_clusters(NAME)
    worker.leave()


def in_both_themes(worker, shot, name, settle=None, **how):
    """Keep pictures of JupyterLab, one in each theme; the light one is last."""
    for theme in ("Dark", "Light"):
        worker.wear(theme)
        if settle:
            settle(theme.lower())
        shot(worker.page, f"{name}-{theme.lower()}", **how)


def test_the_first_notebook_starts_a_cluster_and_every_rank_answers(worker, shot):
    worker.run(1)
    assert "4 of 4" in worker.run(3)

    answers = worker.run(5)

    assert [f"rank {rank} of 4 on" in answers for rank in range(4)] == [True] * 4
    worker.do("application:toggle-left-area")
    tab = worker.page.locator("#jp-main-dock-panel")
    in_both_themes(worker, shot, "start", clip=tab.bounding_box())


def test_the_dashboard_beside_the_notebook_moves_while_the_notebook_trains(worker, shot):
    worker.page.set_viewport_size({"width": 1400, "height": 1000})
    worker.show_clusters()
    worker.press(NAME, "dashboard")
    worker.dashboard(NAME)
    worker.page.evaluate(BESIDE)
    worker.choose_cell(CELLS)
    worker.begin(CELLS)

    def settle(theme):
        inside = worker.dashboard(NAME)
        inside.page.wait_for_url(f"**theme={theme}*")
        inside.painted()
        inside.page.get_by_text("1 min", exact=True).click()
        inside.sees("4 of 4")
        worker.page.locator(".jp-Notebook .jp-CodeCell").last.scroll_into_view_if_needed()
        for _ in range(SEEN):
            inside.moves()

    in_both_themes(worker, shot, "jupyterlab", settle)
    worker.do("notebook:interrupt-kernel")
    assert "KeyboardInterrupt" in worker.ended()
    assert worker.faults() == []
