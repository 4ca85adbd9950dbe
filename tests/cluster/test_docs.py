from __future__ import annotations

import doctest
import re
import traceback
from pathlib import Path

import pytest
from traitlets.config import Config

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# A block of Python, and the output that may follow it.
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)
SESSION = re.compile(r"^>>> ", re.MULTILINE)
PAGES = sorted(
    [DOCS / f"{name}.md" for name in ("large-models", "ml", "placement", "spmd", "training")]
    + [page for page in (DOCS / "howto").glob("*.md") if SESSION.search(page.read_text(encoding="utf-8"))]
)
PLAIN = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_session_of_a_page_runs(client4, page, monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    # What a rank failed with has notes behind it, and early releases of Python 3.11 look at the last line alone.
    lines = traceback.format_exception_only
    monkeypatch.setattr(traceback, "format_exception_only", lambda *error: ["".join(lines(*error))])
    outcome = doctest.testfile(
        str(page), module_relative=False, globs={"client": client4}, optionflags=doctest.ELLIPSIS
    )

    assert outcome == (0, len(SESSION.findall(page.read_text(encoding="utf-8"))))


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


def test_python_of_tasks_that_is_no_session_runs_as_a_configuration():
    blocks = [
        code for page in (DOCS / "howto").glob("*.md") for code in PLAIN.findall(page.read_text(encoding="utf-8"))
    ]
    assert blocks
    for code in blocks:
        config = Config()
        exec(compile(code, "configuration", "exec"), {"c": config})  # noqa: S102  (of a page of this project)
        assert config
