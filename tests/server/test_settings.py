"""What a site sets for the extension in the configuration of Jupyter's server, and where the extension logs."""

from __future__ import annotations

import asyncio
import re

import pytest
from server.running import BASE, TOKEN, end, observers_of, start
from support.processes import until
from traitlets import TraitError

from workbench.deploy.folder import ClusterFolder
from workbench.lab.server.extension import WorkbenchExtension


@pytest.fixture(scope="module")
def limited():
    """Return a server that starts no clusters, and soon ends dashboards without viewers."""
    server = start(allow_starts=False, dashboard_idle=1)
    yield server
    end(server.process)


@pytest.mark.parametrize("path", ["clusters", "check"])
async def test_where_the_site_allows_no_starts_a_request_for_one_is_refused_with_the_setting(limited, path):
    code, told = await limited.ask(path, "POST", {"ranks": 2})

    assert code == 403
    assert "WorkbenchExtension.allow_starts = False" in told["message"]
    assert (await limited.ask("clusters"))[0] == 200


def test_jupyterlab_knows_from_its_page_whether_clusters_can_be_started(started, limited):
    assert [server.page_config["workbenchStarts"] for server in (started, limited)] == [True, False]


async def test_a_dashboard_ends_when_nobody_has_seen_it_for_as_long_as_the_site_says(limited, cluster):
    record = cluster("seen")
    page = f"{BASE}workbench/dashboard/{record.name}/"
    token = {"Authorization": f"token {TOKEN}"}
    assert (await limited.get(page, headers=token)).code == 200
    assert observers_of(limited.process.pid)

    await asyncio.to_thread(until, "the dashboard ends", lambda: not observers_of(limited.process.pid))


@pytest.mark.parametrize("trait", ["dashboard_idle", "look_interval", "look_interval_unseen"])
def test_a_time_that_would_keep_the_server_busy_is_refused(trait):
    with pytest.raises(TraitError, match=trait):
        WorkbenchExtension(**{trait: 0})


async def test_the_extension_logs_where_jupyters_server_does(cluster, capfd):
    logs = ClusterFolder.of(cluster("odd")).logs
    logs.rmdir()
    logs.write_text("no folder")
    server = start()
    try:
        await server.ask("clusters/odd/logs")
    finally:
        end(server.process)
        logs.unlink()

    line = r"^\[E [\d :.-]+ WorkbenchExtension\] GET \S+/clusters/odd/logs failed$"
    assert re.search(line, capfd.readouterr().err, re.MULTILINE)
