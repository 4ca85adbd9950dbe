"""A dashboard of a simulated cluster, and one who looks at it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pytest
from support.patience import DEADLINE

PREFIX = "/user/somebody/workbench/dashboard/simulated"
# The text with the time of the data on the page.
CLOCK = re.compile(r"^\d\d:\d\d:\d\d")
# Milliseconds.
PATIENCE = int(DEADLINE * 1000)


@dataclass
class Dashboard:
    """The dashboard of a simulated cluster, in a separate process."""

    process: subprocess.Popen[str]
    socket: Path
    port: int

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def address(self, query: str = "") -> str:
        return f"{self.origin}{PREFIX}/?{query}"

    def end(self) -> int:
        self.process.stdin.close()
        self.process.stdout.close()
        return self.process.wait(PATIENCE / 1000)


def start(ranks: int, nodes: int, dask: str = "") -> Dashboard:
    socket = Path(tempfile.mkdtemp(dir=os.environ["XDG_RUNTIME_DIR"])) / "panel.sock"
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "benchmarks.simulated_dashboard",
            str(ranks),
            str(nodes),
            str(socket),
            PREFIX,
            dask,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    port = process.stdout.readline()
    if not port:
        pytest.fail(f"the dashboard has ended at once: {process.wait(PATIENCE / 1000)}")
    return Dashboard(process, socket, int(port))


# All that were made by `Viewer.of`, also of pages that are closed.
viewers: list[Viewer] = []


@dataclass
class Viewer:
    """A page of the browser, and what went wrong in it."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    @classmethod
    def alone(cls, browser: Any) -> Self:
        """Return one with a page of a browser that knows nothing of other pages."""
        context = browser.new_context(viewport={"width": 1400, "height": 900}, accept_downloads=True)
        context.set_default_timeout(PATIENCE)
        return cls.of(context.new_page())

    @classmethod
    def of(cls, page: Any) -> Self:
        """Return the viewer of a page of the browser, which from now on records the errors of the page."""
        made = cls(page)
        viewers.append(made)

        def hear(said: Any) -> None:
            # Hosts of other tests get a cable to this one meanwhile, and Chromium then ends what it has asked for.
            if said.type == "error" and "net::ERR_NETWORK_CHANGED" not in said.text:
                made.complaints.append(f"{said.text} ({said.location['url']})")

        page.on("console", hear)
        page.on("pageerror", lambda error: made.complaints.append(f"{error} {error.stack}"))
        page.on("request", lambda request: made.requests.append(request.url))
        page.on("websocket", lambda socket: made.requests.append(socket.url))
        return made

    def open(self, address: str) -> None:
        self.page.goto(address, wait_until="domcontentloaded")
        self.painted()

    def painted(self) -> None:
        self.page.wait_for_function("() => window.Bokeh?.documents[0]?.is_idle")

    def turn_to(self, title: str) -> None:
        self.page.locator("nav").get_by_text(title, exact=True).click()

    def sees(self, text: str) -> None:
        # pages that were turned away from are there, but hidden
        self.page.get_by_text(text).locator("visible=true").first.wait_for()

    def clock(self) -> str:
        """Return the moment that is shown."""
        return self.page.get_by_text(CLOCK).first.inner_text()

    def moves(self) -> None:
        """Wait until another moment is shown."""
        before = self.clock()
        self.page.get_by_text(CLOCK).filter(has_not_text=before).first.wait_for()
