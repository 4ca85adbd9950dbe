"""What a rank samples of its time in MPI, by a clock that the test sets."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from workbench.metrics import activity, sampler, system
from workbench.metrics import activity as activity_module
from workbench.metrics.activity import Activity, BusyTime
from workbench.metrics.sampler import RankSampler
from workbench.metrics.schema import PARTS
from workbench.mpi import call_state
from workbench.mpi.call_state import CallState
from workbench.mpi.counters import Meter


class Rank:
    """A rank whose call enters and leaves operations at given times, in seconds."""

    def __init__(self):
        self.now = 1000.0
        self.activity, self.state = Activity(BusyTime(), Meter()), CallState()
        self.sampler = RankSampler(SimpleNamespace(rank=0, size=1), None, self.activity, None)
        self.begin = self.now

    def monotonic(self):
        return self.now

    def at(self, seconds):
        self.now = self.begin + seconds

    def parts(self, seconds):
        """Sample at a time, and return the fractions of the tick."""
        self.at(seconds)
        values = self.sampler._sample().values
        return {name: pytest.approx(values[name], abs=1e-6) for name in PARTS}


@pytest.fixture
def rank(monkeypatch):
    clock = SimpleNamespace(monotonic=lambda: rank.now if rank else 1000.0, process_time=time.process_time)
    rank = None
    for module in (activity_module, activity, call_state, sampler, system):
        monkeypatch.setattr(module, "time", clock)
    rank = Rank()
    return rank


def enter(rank, operation, seconds):
    rank.at(seconds)
    rank.state.enter(operation)


def leave(rank, seconds):
    rank.at(seconds)
    rank.state.leave()


def test_the_time_of_a_long_operation_counts_once(rank):
    with rank.activity.running("1", "f", rank.state):
        enter(rank, "Allreduce", 0.25)
        assert rank.parts(0.5) == {"busy": 1.0, "stuck": 0.5, "waits": 0.0, "closed": 0.0}
        assert rank.parts(1.0) == {"busy": 1.0, "stuck": 1.0, "waits": 0.0, "closed": 0.0}
        leave(rank, 1.125)
        assert rank.parts(1.5) == {"busy": 1.0, "stuck": 0.0, "waits": 0.0, "closed": 0.25}
        assert rank.parts(2.0) == {"busy": 1.0, "stuck": 0.0, "waits": 0.0, "closed": 0.0}


def test_the_parts_of_a_tick_are_those_of_the_operations_in_it(rank):
    with rank.activity.running("1", "f", rank.state):
        enter(rank, "Wait", 0.0)
        rank.parts(0.5)
        leave(rank, 0.625)
        enter(rank, "Bcast", 0.75)
        leave(rank, 0.875)
        enter(rank, "Barrier", 0.9375)
        assert rank.parts(1.0) == {"busy": 1.0, "stuck": 0.125, "waits": 0.25, "closed": 0.25}


def test_an_operation_that_is_none_of_the_user_counts_only_while_it_lasts(rank):
    with rank.activity.running("1", "f", rank.state):
        with rank.state.entered("Barrier", counted=False):
            assert rank.parts(0.5)["stuck"] == 1.0
            rank.at(0.75)
        enter(rank, "Bcast", 0.75)
        leave(rank, 0.875)
        assert rank.parts(1.0) == {"busy": 1.0, "stuck": 0.0, "waits": 0.0, "closed": 0.25}
