"""A kill for lack of memory is seen in the kernel's counter, for some seconds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from workbench.head import lost_ranks


@pytest.fixture
def clock(monkeypatch):
    """Return the time in a list, as the module reads it."""
    now = [100.0]
    monkeypatch.setattr(lost_ranks.time, "monotonic", lambda: now[0])
    return now


def test_a_kill_is_recent_for_some_seconds_also_if_a_sample_has_counted_it_before_its_process_is_gone(tmp_path, clock):
    counters = tmp_path / "vmstat"
    counters.write_text("pgfault 12\noom_kill 3\n")
    kills = lost_ranks.MemoryKills(counters)
    assert not kills.recent(os.getpid())

    counters.write_text("pgfault 12\noom_kill 4\n")
    for _ in range(8):
        assert kills.recent(os.getpid()) == "this host"
        clock[0] += 1
        kills.sample()
    for _ in range(8):
        clock[0] += 1
        kills.sample()
    assert not kills.recent(os.getpid())


def test_a_system_without_the_counter_has_no_recent_kill(tmp_path):
    kills = lost_ranks.MemoryKills(tmp_path / "missing")
    kills.sample()
    assert not kills.recent(os.getpid())


@pytest.mark.parametrize("file", ["memory.events", "memory.oom_control"])
def test_a_kill_in_the_control_group_of_a_rank_is_said_to_be_one_until_the_group_is_removed(tmp_path, file):
    host, group = tmp_path / "vmstat", tmp_path / "groups"
    host.write_text("oom_kill 3\n")
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        (group / controllers / path.lstrip("/")).mkdir(parents=True, exist_ok=True)
        counter = group / controllers / path.lstrip("/") / file
    counter.write_text("oom 2\noom_kill_disable 0\noom_kill 2\n")
    kills = lost_ranks.MemoryKills(host, group)
    kills.sample()
    kills.watch(os.getpid())
    assert not kills.recent(os.getpid())
    host.write_text("oom_kill 4\n")
    assert kills.recent(os.getpid()) == "this host"
    counter.write_text("oom 3\noom_kill_disable 0\noom_kill 3\n")
    assert kills.recent(os.getpid()) == "its control group"
    assert kills.recent(os.getppid()) == "this host", "the kill was in the control group of another process"
    counter.unlink()
    assert kills.recent(os.getpid()) == "this host"


def test_the_control_group_of_a_process_that_has_left_is_forgotten(tmp_path):
    kills = lost_ranks.MemoryKills(tmp_path / "vmstat", Path("/proc"))
    kills.watch(os.getpid())
    kills.forget(os.getpid())
    assert kills._files == {}
