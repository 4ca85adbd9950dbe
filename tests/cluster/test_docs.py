from __future__ import annotations

import doctest
import re
import traceback
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# A block of Python, and the output that may follow it.
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)


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


def test_the_five_minutes_of_the_readme_run(client4, capsys):
    names = {"__name__": "__main__", "client": client4}
    blocks = BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    ran = 0
    for code, expected in blocks:
        if code.startswith("%"):  # magics start and stop a cluster of their own
            continue
        exec(compile(code, "README.md", "exec"), names)  # noqa: S102  (the code is of this repository)
        assert capsys.readouterr().out == expected
        ran += 1

    assert ran == 3
