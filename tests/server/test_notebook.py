"""`%mpicluster dashboard`: where the browser of a notebook finds the dashboard."""

from __future__ import annotations

import json
import os

import psutil
import pytest
from IPython.core.error import UsageError
from IPython.utils.capture import capture_output
from server.running import BASE, TOKEN
from support.processes import line_of
from support.shell import ipython

from workbench.errors import InvalidRequest
from workbench.lab.subcommands import dashboard_html, dashboard_url
from workbench.session import current


@pytest.fixture(scope="module")
def shell():
    with ipython() as shell:
        yield shell


@pytest.fixture
def kernel(started, monkeypatch):
    """Let this process be a kernel of the server."""
    monkeypatch.setenv(current.SERVER, started.variable)
    monkeypatch.setenv("JPY_PARENT_PID", str(started.process.pid))


async def test_a_kernel_that_jupyter_starts_is_told(server):
    told = {"Authorization": f"token {TOKEN}"}
    answer = await server.get(f"{BASE}api/kernels", method="POST", body="{}", headers=told)
    kernels = [
        child for child in psutil.Process(server.process.pid).children() if "ipykernel_launcher" in line_of(child)
    ]

    variables = kernels[0].environ()

    assert variables[current.SERVER] == server.variable == f"{variables['JPY_PARENT_PID']} {BASE}"
    await server.get(f"{BASE}api/kernels/{json.loads(answer.body)['id']}", method="DELETE", headers=told)


def test_a_kernel_knows_the_base_url_of_its_server(kernel, cluster):
    assert dashboard_url(cluster("a")) == f"{BASE}workbench/dashboard/a/"


async def test_the_url_leads_to_the_dashboard(kernel, cluster, server):
    assert (await server.get(dashboard_url(cluster("a")))).code == 200


@pytest.mark.parametrize("lacking", [current.SERVER, "JPY_PARENT_PID"])
def test_without_the_extension_it_is_told_what_to_do(kernel, cluster, monkeypatch, lacking):
    monkeypatch.delenv(lacking)

    with pytest.raises(InvalidRequest, match=r"jupyter server extension enable workbench\.lab.*workbench dashboard a"):
        dashboard_url(cluster("a"))


def test_a_kernel_of_another_program_inside_a_notebook_is_not_shown_there(kernel, cluster, monkeypatch):
    monkeypatch.setenv("JPY_PARENT_PID", str(os.getpid()))

    with pytest.raises(InvalidRequest):
        dashboard_url(cluster("a"))


def test_the_notebook_shows_it_in_a_frame_with_a_link_under_it(kernel, cluster, shell):
    cluster("a")
    with capture_output() as captured:
        shell.run_line_magic("mpicluster", "dashboard a")

    [shown] = captured.outputs
    html = shown.data["text/html"]
    assert shown.data["text/plain"] == f"{BASE}workbench/dashboard/a/"
    assert html.count(f'"{BASE}workbench/dashboard/a/"') == 2
    assert html.index("<iframe ") < html.index("<a ")
    assert "script" not in html


def test_without_a_cluster_the_notebook_says_so(kernel, shell):
    with pytest.raises(UsageError, match=r"^cluster 'nobody' does not exist"):
        shell.run_line_magic("mpicluster", "dashboard nobody")


def test_a_url_is_text_in_html():
    assert dashboard_html('/user/"me"/').count('"/user/&quot;me&quot;/"') == 2
