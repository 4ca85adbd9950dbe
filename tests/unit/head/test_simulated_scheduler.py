"""Whatever a scheduler answers and a user requests: no job is lost, canceled although it is wanted, or left behind."""

from __future__ import annotations

from collections import Counter

import dask
import pytest
from support.head_sim import simulate


def promises(seeds, tmp_path):
    """Return the broken promises by seed, and how often each operation was made."""
    broken, total = {}, Counter()
    with dask.config.set({"workbench.queue-timeout": "10 minutes"}):
        for seed in seeds:
            faults, counts = simulate(seed, tmp_path / str(seed), pytest.MonkeyPatch())
            total += counts
            if faults:
                broken[seed] = faults
    return broken, total


def test_clusters_of_some_seeds_keep_their_promises(tmp_path):
    broken, made = promises(range(70), tmp_path)
    assert broken == {}
    assert made["ranks that are awaited"] > 10
    assert min(made["move: done"], made["restart: done"], made["Ctrl-C"], made["cancels"], made["wrong answers"]) > 10


@pytest.mark.long
def test_clusters_of_a_thousand_seeds_keep_their_promises(tmp_path):
    broken, _ = promises(range(70, 1000), tmp_path)
    assert broken == {}
