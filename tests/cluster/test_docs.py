from __future__ import annotations

import doctest
import traceback
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", ["ml", "placement", "spmd"])
def test_the_examples_run(client4, page, monkeypatch):
    # What a rank failed with has notes behind it, and early releases of Python 3.11 look at the last line alone.
    lines = traceback.format_exception_only
    monkeypatch.setattr(traceback, "format_exception_only", lambda *error: ["".join(lines(*error))])
    outcome = doctest.testfile(
        str(DOCS / f"{page}.md"), module_relative=False, globs={"client": client4}, optionflags=doctest.ELLIPSIS
    )

    assert outcome.attempted >= 20
    assert outcome.failed == 0
