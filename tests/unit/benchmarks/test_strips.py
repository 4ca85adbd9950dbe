from __future__ import annotations

import pytest
from support.raised import raises

from benchmarks import images, strips
from benchmarks.strips import ONE, STRIPS


def test_strips_sum_up_the_ratios_of_each_round():
    measured = [
        {"arm": arm, "ranks": 4, "round": number, "MiB": factor * mib, "s": 2.0 * number}
        for number, factor in ((2, 1.0), (1, 3.0), (3, 1.5))
        for arm, mib in ((STRIPS, 30.0), (ONE, 100.0))
    ]
    summary = strips.summarize(measured)

    assert summary["memory"] == pytest.approx(0.3)
    assert (summary["strips_MiB"], summary["one_process_MiB"], summary["strips_s"]) == (45.0, 150.0, 4.0)
    assert summary["memory_target"] == 0.30


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_only_errors_of_memory_are_a_lack_of_memory(error):
    def fail(error):
        raise error

    assert not images.is_enough(lambda: fail(error))
    with raises(RuntimeError, args=("a bad shape",)):
        images.is_enough(lambda: fail(RuntimeError("a bad shape")))
