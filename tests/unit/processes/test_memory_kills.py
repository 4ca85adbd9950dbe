"""A kill for lack of memory is seen in the kernel's counter, for some seconds."""

from __future__ import annotations

import pytest

from workbench.processes import memory_kills


@pytest.fixture
def clock(monkeypatch):
    """Return the time in a list, as the module reads it."""
    now = [100.0]
    monkeypatch.setattr(memory_kills.time, "monotonic", lambda: now[0])
    return now


def test_a_kill_is_recent_for_some_seconds_also_if_a_sample_has_counted_it_before_its_process_is_gone(tmp_path, clock):
    counters = tmp_path / "vmstat"
    counters.write_text("pgfault 12\noom_kill 3\n")
    kills = memory_kills.MemoryKills(counters)
    assert not kills.recent()

    counters.write_text("pgfault 12\noom_kill 4\n")
    for _ in range(8):
        assert kills.recent()
        clock[0] += 1
        kills.sample()
    for _ in range(8):
        clock[0] += 1
        kills.sample()
    assert not kills.recent()


def test_a_system_without_the_counter_has_no_recent_kill(tmp_path):
    kills = memory_kills.MemoryKills(tmp_path / "missing")
    kills.sample()
    assert not kills.recent()
