from __future__ import annotations

import pytest
from support.raised import raises

import workbench

NAMES = [
    "MPICluster",
    "__version__",
    "blocks",
    "broadcast",
    "keep",
    "kept",
    "map_blocks",
    "place",
    "reduce",
    "report",
    "restore",
    "run_on_ranks",
    "should_stop",
    "spmd",
]


def test_the_public_names_are_these():
    assert sorted(workbench.__all__) == NAMES
    assert set(NAMES) <= set(dir(workbench))


@pytest.mark.parametrize("name", NAMES)
def test_each_public_name_loads(name):
    assert getattr(workbench, name) is not None


def test_any_other_name_is_an_attribute_error():
    with raises(AttributeError, name="cluser", obj=workbench):
        _ = workbench.cluser
