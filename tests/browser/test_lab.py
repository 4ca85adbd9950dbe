"""The dashboard in JupyterLab: under the cell that asks for it, and in a tab of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import nbformat
import psutil
import pytest
from browser.viewing import Viewer
from jupyter_core.paths import jupyter_runtime_dir
from support.processes import DEADLINE, gone, until

from workbench import registry

BASE, TOKEN = "/user/somebody/", "the-token-of-jupyter"
CELLS = ["%load_ext workbench", "%mpicluster start 2 --name lab", "%mpicluster dashboard", "%mpicluster stop"]
# A test asks the network for nothing: neither for news, nor for another release.
QUIET = [
    "--LabApp.news_url=",
    "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    "--LabApp.extension_manager=readonly",
]
READY = "() => window.jupyterapp?.restored.then(() => true)"
OPEN = """async path => {
  const panel = await jupyterapp.commands.execute("docmanager:open", {path, factory: "Notebook"})
  await panel.context.ready
  await panel.sessionContext.ready
  window.notebook = panel.content
}"""
RUN = """async cell => {
  notebook.activeCellIndex = cell
  await jupyterapp.commands.execute("notebook:run-cell")
  return notebook.widgets[cell].model.outputs.toJSON()
}"""


@pytest.fixture
def lab(tmp_path):
    """Give the address of a JupyterLab with one notebook, and its process."""
    # of a notebook without a kernel JupyterLab asks which one it shall have
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python"}}
    notebook = nbformat.v4.new_notebook(cells=list(map(nbformat.v4.new_code_cell, CELLS)), metadata=kernel)
    nbformat.write(notebook, tmp_path / "a.ipynb")
    options = [
        "--ServerApp.jpserver_extensions={'workbench.server': True}",
        f"--ServerApp.base_url={BASE}",
        f"--ServerApp.root_dir={tmp_path}",
        f"--IdentityProvider.token={TOKEN}",
        "--ServerApp.port=0",
        "--ServerApp.allow_root=True",
        "--LabApp.expose_app_in_browser=True",
    ]
    with (tmp_path / "lab.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", "--no-browser", *options, *QUIET], stdout=log, stderr=log
        )
    told = Path(jupyter_runtime_dir()) / f"jpserver-{process.pid}.json"
    try:
        until("JupyterLab listens", lambda: told.exists() or process.poll() is not None)
        yield json.loads(told.read_text())["url"], psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(DEADLINE)


def text(outputs):
    """Return what a cell has said."""
    return "".join(str(output.get("text", output.get("data", output))) for output in outputs)


def complaints(*viewers):
    """Return what went wrong in pages of the dashboard; others' extensions may be in this JupyterLab, too."""
    return [said for viewer in viewers for said in viewer.complaints if "/workbench/d" in said]


def test_a_notebook_shows_the_dashboard_of_its_cluster_live_and_nobody_else(lab, chromium, viewer, shots):
    address, process = lab
    viewer.page.goto(f"{address}lab?token={TOKEN}")
    viewer.page.wait_for_function(READY)
    viewer.page.evaluate(OPEN, "a.ipynb")
    started = text([output for cell in (0, 1) for output in viewer.page.evaluate(RUN, cell)])
    assert "2 of 2" in started, started
    record = registry.read("lab")

    viewer.page.evaluate(RUN, 2)

    frame = viewer.page.locator("iframe[title=dashboard]")
    inside = Viewer(frame.element_handle().content_frame())
    inside.painted()
    inside.sees("2 of 2")
    inside.moves()
    inside.turn_to("Cores")
    inside.sees("Every core now")
    inside.moves()
    viewer.page.screenshot(path=shots / "lab.png")

    with viewer.page.context.expect_page() as opened:
        viewer.page.get_by_role("link", name="open the dashboard in a tab of its own").click()
    tab = Viewer.of(opened.value)
    tab.painted()
    tab.sees("2 of 2")
    tab.moves()
    assert urlsplit(tab.page.url).path == f"{BASE}workbench/dashboard/lab/"
    assert frame.get_attribute("src") == urlsplit(tab.page.url).path

    stranger = chromium.new_context()
    refused = stranger.request.get(tab.page.url, max_redirects=0)
    assert (refused.status, urlsplit(refused.headers["location"]).path) == (302, f"{BASE}login")
    stranger.close()

    assert complaints(viewer, tab) == []
    assert {urlsplit(url).netloc for url in viewer.requests + tab.requests} <= {urlsplit(address).netloc, ""}

    ended = [*process.children(recursive=True), psutil.Process(record.process.pid)]
    assert len(ended) >= 3  # the kernel, the dashboard and the head, at least
    viewer.page.evaluate(RUN, 3)
    inside.sees("has ended")
    assert not registry.owns_lease(record)
    viewer.page.evaluate("() => jupyterapp.serviceManager.sessions.shutdownAll()")
    process.terminate()
    until("all of it has ended", lambda: all(map(gone, ended)))
