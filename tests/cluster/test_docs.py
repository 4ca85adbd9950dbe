from __future__ import annotations

import doctest
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_examples_of_placement_run(client4):
    outcome = doctest.testfile(str(DOCS / "placement.md"), module_relative=False, globs={"client": client4})

    assert outcome.attempted > 20
    assert outcome.failed == 0
