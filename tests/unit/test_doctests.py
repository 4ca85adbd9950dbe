"""The examples in the docstrings of `workbench`."""

from __future__ import annotations

import doctest
import importlib
import sys

import pytest
from support.examples import MODULES, ON_RANKS, ROOT

# Importing a module that loads `mpi4py.MPI` would initialize MPI in the process of the unit tests.
NEEDS_MPI: set[str] = set()


@pytest.mark.parametrize("name", sorted(MODULES - ON_RANKS - NEEDS_MPI))
def test_the_examples_of_a_module_are_right(name):
    outcome = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)

    assert outcome.failed == 0
    assert "mpi4py.MPI" not in sys.modules, f"{name} loads MPI: name it in NEEDS_MPI"


def test_no_example_is_skipped():
    skipping = [path.name for path in (ROOT / "workbench").rglob("*.py") if "+SKIP" in path.read_text(encoding="utf-8")]

    assert skipping == []
