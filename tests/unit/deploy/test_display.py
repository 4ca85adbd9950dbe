"""The table that a cluster shows of itself."""

from __future__ import annotations

import re

import pytest

from workbench.deploy import display
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
