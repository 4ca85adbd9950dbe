"""How many requests the head has under way at once."""

from __future__ import annotations

import pytest

from workbench.head.asking import room


@pytest.mark.parametrize(("nbytes", "at_once"), [(0, 64 << 20), (1 << 20, 64), (1 << 30, 1)])
def test_requests_under_way_have_64_mib_together_or_are_one(nbytes, at_once):
    assert room(nbytes)._value == at_once
