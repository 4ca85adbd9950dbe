"""A separate JupyterLab, and its user."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit
from uuid import uuid4

import nbformat
import psutil
import pytest
from jupyter_core.paths import jupyter_runtime_dir
from support.processes import DEADLINE, until

from browser.viewing import Viewer
from workbench.deploy import registry
from workbench.deploy.folder import ClusterFolder
from workbench.deploy.record import Record, World
from workbench.host import node_dirs
from workbench.host.processes import ProcessId

BASE, TOKEN = "/user/somebody/", "the-token-of-jupyter"
PANEL = "#mpi-workbench-clusters"
# Settings without requests to the network (news, releases), and without a question to the user about them.
_QUIET = [
    "--LabApp.news_url=",
    "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    "--LabApp.extension_manager=readonly",
]
_READY = "() => window.jupyterapp?.restored.then(() => true)"
_OPEN = """async path => {
  const panel = await jupyterapp.commands.execute("docmanager:open", {path, factory: "Notebook"})
  await panel.context.ready
  await panel.sessionContext.ready
  window.notebook = panel.content
}"""
_CHOOSE = "cell => { notebook.activeCellIndex = cell }"
_RUN = """async cell => {
  notebook.activeCellIndex = cell
  await jupyterapp.commands.execute("notebook:run-cell")
  return notebook.widgets[cell].model.outputs.toJSON()
}"""
_SOURCE = "cell => notebook.widgets[cell].model.sharedModel.source"


class Lab:
    """A JupyterLab under a base URL, for who has the token; it serves the pages of Notebook, too."""

    def __init__(self, folder: Path, *options: str, base: str = BASE) -> None:
        self.folder = folder / "root"
        self.folder.mkdir()
        self._log = folder / "lab.log"
        asking = folder / "settings" / "@jupyterlab" / "apputils-extension" / "notification.jupyterlab-settings"
        asking.parent.mkdir(parents=True)
        asking.write_text('{"fetchNews": "false"}')
        self._command = [
            *(sys.executable, "-m", "jupyterlab", "--no-browser"),
            f"--ServerApp.base_url={base}",
            f"--ServerApp.root_dir={self.folder}",
            f"--IdentityProvider.token={TOKEN}",
            "--ServerApp.jpserver_extensions={'workbench.lab': True}",
            "--ServerApp.allow_root=True",
            # JupyterLab and Notebook have this class in common
            "--LabServerApp.expose_app_in_browser=True",
            f"--LabServerApp.workspaces_dir={folder / 'workspaces'}",
            f"--LabServerApp.user_settings_dir={folder / 'settings'}",
            *_QUIET,
            *options,
        ]
        self.address = ""
        self.start()

    @property
    def port(self) -> int:
        """Where it listens; before the first start any port is good."""
        return urlsplit(self.address).port or 0

    def start(self) -> None:
        """Start it, at the port that it had."""
        with self._log.open("a") as log:
            command = [*self._command, f"--ServerApp.port={self.port}"]
            self.process = psutil.Popen(command, stdout=log, stderr=log)
        told = Path(jupyter_runtime_dir()) / f"jpserver-{self.process.pid}.json"
        try:
            until("JupyterLab is up", lambda: _url(told) or self.process.poll() is not None)
            if self.process.poll() is not None:
                pytest.fail(f"JupyterLab has ended at once: {self._log.read_text()[-2000:]}")
            self.address = _url(told)
            # JupyterLab prints its address before it listens
            until("JupyterLab listens", lambda: _listens(self.port))
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """End it."""
        self.process.terminate()
        try:
            self.process.wait(DEADLINE / 2)
        except psutil.TimeoutExpired:
            # It has stopped. Now and then its interpreter waits at the end for an idle thread of AnyIO, and for ever.
            self.process.kill()
            self.process.wait(DEADLINE)

    def write(self, name: str, cells: Sequence[str], kernel: str = "python3") -> None:
        """Write a notebook."""
        # of a notebook without a kernel JupyterLab asks which one it shall have
        metadata = {"kernelspec": {"name": kernel, "display_name": "Python"}}
        made = nbformat.v4.new_notebook(cells=list(map(nbformat.v4.new_code_cell, cells)), metadata=metadata)
        nbformat.write(made, self.folder / name)


def _url(told: Path) -> str:
    # the file is there before it says anything
    with suppress(OSError, ValueError):
        return str(json.loads(told.read_text())["url"])
    return ""


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("localhost", port), DEADLINE):
        return True
    return False


def workbench(*words: str) -> str:
    """Do in a terminal what `words` say, and return what is said."""
    command = [sys.executable, "-m", "workbench", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=DEADLINE).stdout


def said(outputs: Sequence[dict[str, Any]]) -> str:
    """Return what a cell has said."""
    return "".join(str(output.get("text", output.get("data", output))) for output in outputs)


class Worker(Viewer):
    """Who works in JupyterLab, with a browser of his own."""

    @classmethod
    def at(cls, lab: Lab, browser: Any, path: str = "", prepare: Callable[[Any], None] = lambda _: None) -> Self:
        """Log in, and wait for JupyterLab as it is on the first visit, or for another page of the server.

        `prepare` is given the page of the browser before that.
        """
        its = cls.alone(browser)
        prepare(its.page)
        # tabs are kept by workspace
        its.page.goto(f"{lab.address}{path or f'lab/workspaces/{uuid4().hex}'}?token={TOKEN}")
        its.restored()
        return its

    def restored(self) -> None:
        """Wait until JupyterLab is there, with the tabs that it had."""
        self.page.wait_for_function(_READY)

    def do(self, command: str, **arguments: Any) -> None:
        """Execute a command of JupyterLab, without a wait for a command that opens a dialog."""
        self.page.evaluate("its => { jupyterapp.commands.execute(its[0], its[1]) }", [command, arguments])

    def open_notebook(self, name: str) -> None:
        """Open a notebook, and wait for its kernel."""
        self.page.evaluate(_OPEN, name)

    def choose_cell(self, cell: int) -> None:
        """Make a cell the active one."""
        self.page.evaluate(_CHOOSE, cell)

    def source(self, cell: int) -> str:
        """Return what stands in a cell."""
        return str(self.page.evaluate(_SOURCE, cell))

    def run(self, cell: int) -> str:
        """Run a cell to its end, and return what it says."""
        return said(self.page.evaluate(_RUN, cell))

    def begin(self, cell: int) -> None:
        """Begin to run a cell."""
        self.page.evaluate(f"cell => {{ delete window.ran; ({_RUN})(cell).then(it => {{ window.ran = it }}) }}", cell)

    def ended(self) -> str:
        """Wait for the end of the cell that was begun, and return what it says."""
        self.page.wait_for_function("() => 'ran' in window")
        return said(self.page.evaluate("() => ran"))

    def wear(self, theme: str) -> None:
        """Change the theme of JupyterLab to ``Dark`` or ``Light``, and wait until it is there."""
        name = f"JupyterLab {theme}"
        self.do("apputils:change-theme", theme=name)
        self.page.locator(f'body[data-jp-theme-name="{name}"]').wait_for(state="attached")
        self.page.locator("#jupyterlab-splash").wait_for(state="detached")

    def show_clusters(self) -> None:
        """Open the panel of clusters."""
        self.do("mpi-workbench:show")
        self.page.locator(PANEL).wait_for()

    def card(self, name: str) -> Any:
        """Return the card of a cluster."""
        return self.page.locator(f'{PANEL} [data-cluster="{name}"]')

    def press(self, name: str, command: str) -> None:
        """Press a button of a card."""
        self.card(name).locator(f'[data-command="mpi-workbench:{command}"]').click()

    def dialog(self) -> Any:
        """Return the dialog that is open."""
        return self.page.locator(".jp-Dialog")

    def answer(self, label: str) -> None:
        """Press a button at the foot of the dialog."""
        self.dialog().locator(".jp-Dialog-footer").get_by_role("button", name=label).click()

    def form(self) -> Any:
        """Return the tab with the form for a new cluster."""
        return self.page.locator(".wb-NewCluster")

    def field(self, name: str) -> Any:
        """Return what a value is filled in by."""
        return self.form().locator(f"#wb-new-{name}")

    def fill(self, **values: str) -> None:
        """Fill in fields of the form for a new cluster."""
        self.field("ranks").wait_for()
        for name, value in values.items():
            control = self.field(name)
            if not control.is_visible():
                self.form().get_by_text("More options").click()
            if control.evaluate("its => its.tagName") == "SELECT":
                control.select_option(value)
            else:
                control.fill(value)

    def script(self, text: str) -> None:
        """Wait until the form shows the script of what is filled in, and this in it."""
        self.form().locator(".wb-Script pre:not(.wb-mod-old)", has_text=text).wait_for()

    def starter(self) -> Any:
        """Return the button that starts what is filled in."""
        return self.form().get_by_role("button", name="Start", exact=True)

    def close_form(self) -> None:
        """Close the tab with the form for a new cluster."""
        self.page.get_by_role("tab", name="New Cluster").locator(".lm-TabBar-tabCloseIcon").click()
        self.form().wait_for(state="detached")

    def dashboard(self, name: str) -> Viewer:
        """Return who looks at the tab with the dashboard of a cluster, once it is drawn."""
        frame = self.page.locator(f'iframe[title="Dashboard of cluster {name}"]')
        frame.wait_for()
        inside = Viewer(frame.element_handle().content_frame())
        inside.painted()
        return inside

    def dashboard_page(self, name: str) -> Self:
        """Press the button for the dashboard of a cluster, and return who looks at the page that it opens."""
        with self.page.context.expect_page() as opened:
            self.press(name, "dashboard")
        its = self.of(opened.value)
        its.painted()
        return its

    def faults(self) -> list[str]:
        """Return what went wrong in what is ours; others' extensions may be in this JupyterLab, too."""
        return [fault for fault in self.complaints if "/workbench/" in fault or "mpi-workbench" in fault]

    def elsewhere(self, lab: Lab) -> list[str]:
        """Return the addresses of other hosts that were asked for anything."""
        return [url for url in self.requests if urlsplit(url).netloc not in ("", urlsplit(lab.address).netloc)]

    def leave(self) -> None:
        """End what he has begun, but no clusters."""
        # Without a server there would be no end of it, and evaluations have no deadline.
        self.page.evaluate(
            """() => Promise.race([
              jupyterapp.serviceManager.sessions.shutdownAll().catch(() => undefined),
              new Promise(done => setTimeout(done, 10000)),
            ])"""
        )
        self.page.context.close()


def end_clusters(*names: str) -> None:
    """End those of some clusters that there are."""
    for name in names:
        if name in registry.names():
            workbench("stop", name)


def make(name: str, log: str = "", process: ProcessId | None = None, ends: float | None = None) -> Record:
    """Make the record of a cluster, whose head is this process where no other is named, and whose walltime ends so."""
    world = World(0, ranks=2, state="ready", up=2)
    record = Record(name, ranks=2, state="ready", world=world, process=process or ProcessId.here(), ends=ends)
    registry.create(record)
    (ClusterFolder.of(record).logs / "head.log").write_text(f"{log}\n")
    return record


def forget(record: Record) -> None:
    """Remove what there is of a cluster that does not run."""
    ClusterFolder.of(record).remove()
    node_dirs.remove(record.id)
