"""A report of a cluster that runs."""

from __future__ import annotations

import pytest
from support import metered
from support.processes import until

from workbench import MPICluster, run_on_ranks
from workbench.errors import ClusterNotFound, InvalidRequest
from workbench.lab.html_report import report


def test_a_report_has_what_the_ranks_did(cluster4, client4, tmp_path):
    run_on_ranks(metered.ring, [1, 2, 3, 4], client=client4)
    until("what was sent", lambda: "Allreduce" in set(cluster4.metrics("operations")["operation"]))
    # The chart has the operations that took longest, and other tests have called some on these ranks.
    longest = cluster4.metrics("operations").groupby("operation")["seconds"].sum().idxmax()
    file = tmp_path / "report.html"

    assert report(str(file), None, cluster4.record) == f"{file} has the report of cluster 'shared'"

    told = file.read_text()
    assert told.endswith("</html>")
    assert "<title>shared: report</title>" in told
    assert "4 ranks on 1 node, report of " in told
    assert longest in told[told.rindex("<main>") :]


def test_ranks_that_count_nothing_have_no_report_and_neither_has_a_cluster_that_has_ended(tmp_path, monkeypatch):
    monkeypatch.setenv("DASK_WORKBENCH__METRICS__ENABLED", "false")
    file = tmp_path / "report.html"
    with MPICluster(1, quiet=True) as cluster:
        record = cluster.record
        with pytest.raises(InvalidRequest):
            report(str(file), record.name)
    with pytest.raises(ClusterNotFound):
        report(str(file), record.name)
    assert not file.exists()
