"""Measurements as frames and as OpenMetrics, and the reports of fits."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
from support.node_messages import joined, message
from support.raised import raises

from workbench import report
from workbench.errors import InvalidRequest
from workbench.metrics import tables, training
from workbench.metrics.schema import KINDS, RANK
from workbench.metrics.store import Store
from workbench.metrics.tables import TABLES, frame

MPI = KINDS.index("mpi")


@pytest.fixture(scope="module")
def update():
    store = Store(lambda: {"name": 'a "name"'})
    joined(store)
    told = {"sent": [(0, 3, MPI, 100.0, 2.0)], "operations": [(0, "Send", 2, 100.0, 0.5)], "cpu": 12.5}
    store.tick()
    for _ in range(2):
        store.take(message([0, 1], "a", **told))
        store.take(message([2, 3], "b", sizes=[(2, MPI, 1)]))
        store.tick()
    store.calls.began("abc", 12)
    over = {"call": "abc", "what": "f", "mpi": 0.5, "operations": 3, "bytes": 80}
    store.take(
        message([0, 1], cpu=12.5, ended=[over | {"begin": 10.0, "end": 12.0}, over | {"begin": 11.0, "end": 14.0}])
    )
    store.report({"fit": "1", "name": "KMeans", "time": 7.5, "step": 1.0, "inertia": 2.0})
    store.tick()
    return store.update()


def test_ranks_have_a_row_each_tick(update):
    ranks = frame(update, "ranks")
    assert list(ranks.columns) == ["time", "rank", "host", *RANK]
    assert len(ranks) == 4 * len(update.times)
    assert str(ranks["time"].dtype) == "datetime64[ns, UTC]"
    last = ranks[ranks["time"] == ranks["time"].max()]
    assert last["rank"].tolist() == [0, 1, 2, 3]
    assert last["host"].tolist() == ["a", "a", "b", "b"]
    assert last["cpu"].tolist() == [12.5, 12.5, 0.0, 0.0]


def test_traffic_has_a_row_for_each_pair(update):
    traffic = frame(update, "traffic")
    assert len(traffic) == len(KINDS) * 16
    sent = traffic[traffic["bytes"] > 0].iloc[0]
    assert (sent["kind"], sent["source"], sent["target"], sent["messages"]) == ("mpi", "0", "3", 2.0)


def test_all_tables_are_there_and_go_to_parquet_and_back(update, tmp_path):
    import pandas as pd

    for name in TABLES:
        table = frame(update, name)
        assert len(table), name
        table.to_parquet(tmp_path / name)
        pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / name), table)
    sizes = frame(update, "sizes")
    assert sizes["least"].tolist()[:5] == [0, 1, 2, 4, 8]
    assert sizes["most"].tolist()[:5] == [0, 1, 3, 7, 15]
    assert frame(update, "cores")["core"].tolist()[:5] == [0, 1, 0, 1, 2]
    [call] = frame(update, "calls").to_dict("records")
    assert (call["call"], call["cell"], call["what"], call["ranks"]) == ("abc", 12, "f", 2)
    assert (call["seconds"], call["mpi"], call["operations"], call["bytes"]) == (5.0, 1.0, 6, 160)
    assert (call["end"] - call["begin"]).total_seconds() == 4.0
    assert frame(update, "operations")["operation"].tolist() == ["Send"]


def test_fits_have_the_columns_of_every_table_also_before_the_first_one(update):
    [record] = frame(update, "fits").to_dict("records")
    assert (record["fit"], record["name"], record["step"], record["inertia"]) == ("1", "KMeans", 1.0, 2.0)
    assert record["time"].isoformat() == "1970-01-01T00:00:07.500000+00:00"

    nothing = frame(dataclasses.replace(update, fits=[]), "fits")
    assert list(nothing.columns) == ["fit", "name", "time", "step"]
    assert nothing["time"].dtype == frame(update, "ranks")["time"].dtype


def test_a_table_that_there_is_not_is_refused_in_words(update):
    with raises(InvalidRequest, option="table", given="rank") as refused:
        frame(update, "rank")
    assert (refused.value.option, refused.value.given, refused.value.allowed[0]) == ("table", "rank", "ranks")


def test_open_metrics_have_the_last_tick_and_the_totals(update):
    lines = tables.openmetrics(update).splitlines()
    assert lines[-1] == "# EOF"
    assert "# HELP workbench_rank_cpu_percent CPU time, in percent of one core." in lines
    assert 'workbench_rank_cpu_percent{cluster="a \\"name\\"",rank="1",host="a"} 12.5' in lines
    assert 'workbench_traffic_bytes_total{cluster="a \\"name\\"",kind="mpi",source="0",target="3"} 100.0' in lines
    assert 'workbench_operation_seconds_total{cluster="a \\"name\\"",operation="Send"} 0.5' in lines
    line = re.compile(
        r'(# TYPE \w+ (gauge|counter)|# HELP \w+ [^\n]+\.|\w+\{(\w+="([^"\\\n]|\\.)*",?)+\} [-+.\de]+|# EOF)'
    )
    assert all(map(line.fullmatch, lines))
    families = [its.split()[2] for its in lines if its.startswith("# TYPE")]
    assert len(families) == len(set(families))


def test_an_event_of_a_fit_becomes_records():
    event = {"fit": 7, "name": "KMeans", "records": [{"iteration": 1, "inertia": np.float32(2.0), "engine": "mpi"}]}
    told = list(training.records(event, 5.0))
    assert told == [{"fit": "7", "name": "KMeans", "time": 5.0, "step": 1.0, "inertia": 2.0}]
    assert list(training.records({"fit": 7}, 5.0)) == []
    assert list(training.records("nonsense", 5.0)) == []
    assert list(training.records({"fit": 1, "records": [{"loss": 1.0}]}, 5.0)) == []


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"loss": "3"}, r"takes numbers, and loss is '3'\. Pass float\(loss\)"),
        ({"time": 3.0}, r"report\(time=...\) is not valid: 'time' is a reserved name"),
        ({"loss": 10**400}, "in the range of a float"),
        ({"loss": 3.0}, r"found no cluster\. Call report\(\) after %mpicluster start"),
    ],
)
def test_a_report_is_of_numbers_and_to_somebody(values, words):
    with pytest.raises(InvalidRequest, match=words):
        report(1, **values)
