"""What code of the user writes to a value of the worker is kept, also when Dask spills the value meanwhile."""

from __future__ import annotations

import numpy as np
import pytest
from distributed.spill import SpillBuffer

from workbench.placement.in_use import empty_aligned, is_aligned, put_back, take

ROWS = 10_000


@pytest.fixture(params=[1 << 30, 1 << 10], ids=["below the target", "above the target"])
def data(request, tmp_path):
    data = SpillBuffer(str(tmp_path), target=request.param)
    data["block"] = np.zeros(ROWS)
    return data


def spill(data):
    while data.fast:
        data.evict()


def test_what_is_written_before_and_after_a_block_is_spilled_is_kept(data):
    block = take(data, "block")
    block[: ROWS // 2] = 1
    spill(data)
    block[ROWS // 2 :] = 1

    put_back(data, {"block": block})
    del block

    assert data["block"].sum() == ROWS


def test_a_block_that_came_back_from_disk_is_aligned_and_is_the_one_that_is_held(data):
    data["block"] = empty_aligned((ROWS + 1,), float)[1:]
    block = take(data, "block")

    assert is_aligned(block)
    assert data["block"] is block


def test_what_was_released_meanwhile_does_not_come_back(data):
    block = take(data, "block")
    del data["block"]

    put_back(data, {"block": block})

    assert "block" not in data


def test_nothing_is_written_to_disk_for_a_block_that_was_not_spilled(tmp_path):
    data = SpillBuffer(str(tmp_path), target=1 << 30)
    data["block"] = block = empty_aligned((ROWS,), float)

    put_back(data, {"block": take(data, "block")})

    assert data["block"] is block
    assert not data.slow


def test_a_worker_without_a_memory_limit_needs_nothing():
    data = {"block": np.zeros(ROWS)}

    put_back(data, {"block": take(data, "block")})

    assert list(data) == ["block"]
