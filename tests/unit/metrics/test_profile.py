"""What profiles make of the reports of ranks, and what a rank reports."""

from __future__ import annotations

import functools
import pickle
import threading
from types import SimpleNamespace

import pandas as pd
import pytest
from support.raised import raises

from workbench.errors import InvalidRequest
from workbench.metrics import profile_rank
from workbench.metrics.activity import Activity, BusyTime
from workbench.metrics.profile_frame import ProfileFrame
from workbench.mpi.call_state import CallState
from workbench.mpi.counters import Counters, Meter


def told(rank, **given):
    its = {"rank": rank, "host": "a", "seconds": 10.0, "busy": 6.0, "messages": 3}
    return {**its, "operations": {"Send": (3, 300, 1.0), "Barrier": (1, 0, 1.5)}, "sites": {}, **given}


def test_each_rank_has_a_row_in_the_order_of_ranks():
    frame = ProfileFrame([told(2), told(1, operations={}), told(0, busy=2.0)])

    assert frame["rank"].tolist() == [0, 1, 2]
    assert frame["mpi"].tolist() == [2.5, 0.0, 2.5]
    assert frame["mpi_percent"].tolist() == [25.0, 0.0, 25.0]
    assert frame["compute"].tolist() == [0.0, 6.0, 3.5]
    assert frame["bytes"].tolist() == [300, 0, 300]
    assert frame["top_operation"].tolist() == ["Barrier", "", "Barrier"]


def test_a_rank_has_waited_in_each_operation_the_share_that_the_sample_has():
    operations = {"Send": (3, 300, 1.0), "Barrier": (9, 0, 4.0), "Waitall": (1, 0, 0.5), "Bcast": (1, 0, 2.0)}
    met = {
        (1, "Barrier"): (0.3, 0.4),
        (1, "Send"): (0.0, 0.1),
        (1, "Allreduce"): (1.0, 1.0),
        (2, "other"): (0.1, 0.2),
    }
    ranks = [told(1, operations=operations), told(2, operations={"Unheard_of": (1, 0, 2.0)}), told(3)]
    frame = ProfileFrame(ranks, waited=met)

    # three quarters of that in barriers, and all that does nothing but wait; of the broadcast nothing is known
    assert frame["waiting"].tolist() == pytest.approx([3.5, 1.0, 0.0])


def test_operations_and_places_are_sums_of_all_ranks_with_the_most_expensive_first():
    sites = {("Send", "a.py:1"): (1, 100, 0.25), ("Send", "a.py:2"): (2, 200, 0.75), ("Barrier", "a.py:3"): (1, 0, 1.0)}
    frame = ProfileFrame([told(0, sites=sites), told(1, sites={("Send", "a.py:2"): (1, 8, 2.0)})])

    assert frame.operations.to_dict("records") == [
        {"operation": "Barrier", "calls": 2, "seconds": 3.0, "percent": 60.0, "bytes": 0},
        {"operation": "Send", "calls": 6, "seconds": 2.0, "percent": 40.0, "bytes": 600},
    ]
    assert frame.sites[["place", "calls", "seconds", "percent", "bytes"]].to_numpy().tolist() == [
        ["a.py:2", 3, 2.75, 68.75, 208],
        ["a.py:3", 1, 1.0, 25.0, 0],
        ["a.py:1", 1, 0.25, 6.25, 100],
    ]


def test_it_shows_itself_as_text():
    sites = {("Send", f"a.py:{line}"): (1, 2048, 1.0 / line) for line in range(1, 8)}
    lines = repr(ProfileFrame([told(0, sites=sites), told(3)], ["rank 1"], {(3, "Barrier"): (2.0, 2.0)})).splitlines()

    assert lines[0] == "2 ranks, 10.000 s, 25.0 % in MPI; without rank 1, missing at the end of the profile"
    rows = [line.split() for line in lines]
    assert ["3", "a", "10.000", "3.500", "2.500", "25.0", "1.500", "3", "300", "B", "Barrier"] in rows
    assert ["all", "20.000", "7.000", "5.000", "25.0", "1.500", "6", "600", "B", "Barrier"] in rows
    assert ["Send", "6", "2.000", "40.0", "600", "B"] in rows
    assert [row[1] for row in rows if row[:1] == ["Send"] and "kiB" in row] == [f"a.py:{line}" for line in range(1, 6)]


def test_it_shows_itself_in_a_notebook_without_markup_from_outside():
    html = ProfileFrame([told(0, host="<b>", sites={("Send", "<i>.py:1"): (1, 1, 1.0)})], ["<u>"])._repr_html_()

    assert html.count('<table class="dataframe">') == 3
    assert "&lt;b&gt;" in html
    assert "&lt;i&gt;.py:1" in html
    assert not {"<b>", "<i>", "<u>"} & {html[i : i + 3] for i in range(len(html))}


def test_of_many_ranks_those_are_shown_that_were_longest_in_mpi():
    ranks = [told(rank, operations={"Send": (1, 1, rank / 100)}) for rank in range(100)]
    lines = repr(ProfileFrame(ranks)).splitlines()

    assert "only the 32 ranks with the most time in MPI are shown" in lines[0]
    assert [line.split()[0] for line in lines[3:35]] == [str(rank) for rank in range(68, 100)]


def test_nothing_is_shown_where_nothing_was_measured():
    frame = ProfileFrame([])

    assert repr(frame).startswith("0 ranks, 0.000 s, 0.0 % in MPI")
    assert list(frame.sites.columns) == ["operation", "place", "calls", "seconds", "percent", "bytes"]


def test_what_is_made_of_it_is_a_plain_frame_and_it_can_be_pickled():
    frame = ProfileFrame([told(0), told(1)])

    assert type(frame.sort_values("mpi")) is pd.DataFrame
    assert repr(pickle.loads(pickle.dumps(frame))) == repr(frame)  # noqa: S301  (made here)


def send(watch, counters, nbytes):
    watch.enter("Send")
    counters.operations["Send"][1] += nbytes
    watch.leave()


def test_bytes_and_calls_belong_to_the_place_in_the_code_of_the_user():
    counters = Counters(locate=profile_rank.locate)
    watch = CallState(counters)
    for nbytes in (10, 20):
        send(watch, counters, nbytes)
    line = send.__code__.co_firstlineno + 3

    [(key, (calls, nbytes, seconds))] = counters.sites.items()
    assert (*key, calls, nbytes) == ("Send", f"test_profile.py:{line}", 2, 30)
    assert seconds == counters.operations["Send"][2]


def test_two_places_share_the_bytes_of_an_operation():
    places = iter(["a", "b", "a"])
    counters = Counters(locate=lambda: next(places))
    for nbytes in (1, 10, 100):
        send(CallState(counters), counters, nbytes)

    assert {key: counts[:2] for key, counts in counters.sites.items()} == {
        ("Send", "a"): [2, 101],
        ("Send", "b"): [1, 10],
    }


def test_what_a_library_calls_belongs_to_the_place_there():
    counters = Counters(locate=profile_rank.locate)
    watch = CallState(counters)
    watch.enter("Send")
    # none of its frames is of a test, as none is of a user on the thread of a rank that runs a fit
    thread = threading.Thread(target=watch.leave)
    thread.start()
    thread.join()

    [(_, place)] = counters.sites
    assert place.startswith("threading.py:")


class Loop:
    """An event loop whose time is up when the test sets that."""

    def __init__(self):
        self.later = []

    def call_later(self, _, function, *args):
        self.later.append(functools.partial(function, *args))


@pytest.fixture
def worker():
    return SimpleNamespace(activity=Activity(BusyTime(), Meter()), loop=Loop(), name=0)


def test_a_profile_whose_client_is_gone_is_forgotten_one_day(worker):
    meter = worker.activity.meter
    assert profile_rank.begin("one", worker) == "0"
    assert profile_rank.begin("other", worker) == "0"
    assert meter.open().locate is profile_rank.locate

    for over in worker.loop.later:
        over()

    assert meter.open().locate is None
    assert profile_rank.end("one", worker) is None


def test_an_operation_that_is_not_over_counts_with_its_seconds_until_now(worker):
    watch = CallState()
    with worker.activity.running("1", "f", watch):
        watch.enter("Barrier")
        watch.since -= 100
        before = worker.activity.counted()
        watch.leave()
        after = worker.activity.counted()

    assert 100 < before.operations["Barrier"][2] <= after.operations["Barrier"][2] < 110
    assert [its.operations["Barrier"][0] for its in (before, after)] == [0, 1]


def test_a_rank_that_counts_nothing_and_a_worker_that_is_no_rank_say_so(worker):
    worker.activity.enabled = False
    with raises(InvalidRequest, option="workbench.metrics.enabled"):
        profile_rank.begin("one", worker)
    with raises(InvalidRequest, option=""):
        profile_rank.begin("one", SimpleNamespace())
