"""The examples in the docstrings of `workbench`."""

from __future__ import annotations

import doctest
import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Importing a module that loads `mpi4py.MPI` would initialize MPI in the process of the unit tests.
NEEDS_MPI: set[str] = set()
MODULES = sorted(
    {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in (ROOT / "workbench").rglob("*.py")
        if ">>> " in path.read_text(encoding="utf-8")
    }
    - NEEDS_MPI
)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_are_right(name):
    outcome = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)

    assert outcome.failed == 0
    assert "mpi4py.MPI" not in sys.modules, f"{name} loads MPI: name it in NEEDS_MPI"
