"""The table that a cluster shows of itself."""

from __future__ import annotations

import contextlib
import io
import os
import re
import select

import pytest

from workbench.deploy import display
from workbench.deploy.display import Progress
from workbench.deploy.record import Record
from workbench.session import current

RECORD = Record(name="a", ranks=2, state="ready", address="tls://127.0.0.1:1")


@pytest.fixture
def kernel(monkeypatch):
    """Let this process be a kernel of a Jupyter server that shows dashboards."""
    monkeypatch.setenv(current.SERVER, "4711 /user/me&you/")
    monkeypatch.setenv("JPY_PARENT_PID", "4711")


def test_the_table_has_the_address_of_the_dashboard_on_the_jupyter_server(kernel):
    html = display.html(RECORD, [], "running")

    path = "/user/me&amp;you/workbench/dashboard/a/"
    assert re.search(f'>dashboard</td><td style="[^"]*"><a href="{path}"', html)
    assert f">{path}</a>" in html


def test_where_no_jupyter_server_shows_dashboards_the_table_has_the_command(kernel, monkeypatch):
    monkeypatch.setenv("JPY_PARENT_PID", "4712")

    assert "<code>workbench dashboard a</code> in a terminal" in display.html(RECORD, [], "running")


def test_a_cluster_that_is_closed_has_no_dashboard(kernel):
    assert "dashboard" not in display.html(RECORD, [], "closed")


def test_a_table_escapes_all_that_is_not_markup():
    html = display.table(("<name>",), [("a&b", display.Markup("<b>1</b>"), 2)], key=";opacity:.7")

    assert "<thead><tr><th" in html
    assert "&lt;name&gt;" in html
    assert '<td style="text-align:left;opacity:.7">a&amp;b</td><td style="text-align:left"><b>1</b></td>' in html
    assert "<thead>" not in display.table((), [("a",)])


def start(*, quiet=False):
    """Show the start of three ranks."""
    with Progress(3, quiet=quiet) as progress:
        for state, up in (("submitted", 0), ("world starting", 0), ("world starting", 1), ("ready", 3), ("ready", 3)):
            progress.show(state, up)


def test_a_file_gets_one_line_for_each_state(monkeypatch):
    file = io.StringIO()
    monkeypatch.setattr("sys.stderr", file)

    start()

    lines = [re.sub(r"[\d.]+ s$", "T", line) for line in file.getvalue().splitlines()]
    assert lines == ["submitted · 0 of 3 ranks T", "world starting · 0 of 3 ranks T", "ready · 3 of 3 ranks T"]


def _read_line(screen):
    """Return what comes up to the end of a line; a terminal hands it over in pieces."""
    shown = b""
    while not shown.endswith(b"\n"):
        assert select.select([screen], [], [], 10)[0], f"no more comes after {shown!r}"
        shown += screen.read(10_000)
    return shown.decode()


def test_a_terminal_gets_one_line_that_is_replaced(monkeypatch):
    ours, theirs = os.openpty()
    with open(ours, "rb", buffering=0) as screen, open(theirs, "w", encoding="utf-8") as terminal:
        monkeypatch.setattr("sys.stderr", terminal)

        start()
        terminal.flush()

        shown = _read_line(screen)
    assert shown.count("\n") == 1
    drawn = [line.removesuffix("\x1b[K") for line in shown.rstrip().split("\r")[1:]]
    assert len(drawn) == 4
    assert re.fullmatch(r"world starting · 1 of 3 ranks \|█{6} {14}\| [\d.]+ s", drawn[2])
    assert re.fullmatch(r"ready · 3 of 3 ranks \|█{20}\| [\d.]+ s", drawn[3])


@pytest.mark.parametrize("shown", ["world starting", "failed"])
def test_a_start_that_fails_says_so_once(shown, monkeypatch):
    file = io.StringIO()
    monkeypatch.setattr("sys.stderr", file)

    with contextlib.suppress(RuntimeError), Progress(3, quiet=False) as progress:
        progress.show(shown, 1)
        raise RuntimeError

    assert file.getvalue().splitlines()[-1].startswith("failed · 1 of 3 ranks")
    assert file.getvalue().count("failed") == 1


def test_a_quiet_start_shows_nothing(capfd):
    start(quiet=True)

    assert capfd.readouterr() == ("", "")
