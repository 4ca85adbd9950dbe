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
TASKS = sorted(page for page in (DOCS / "howto").glob("*.md") if ">>> " in page.read_text(encoding="utf-8"))
PLAIN = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def run(page, client, monkeypatch):
    """Run the session of a page, and return what doctest has counted."""
    # What a rank failed with has notes behind it, and early releases of Python 3.11 look at the last line alone.
    lines = traceback.format_exception_only
    monkeypatch.setattr(traceback, "format_exception_only", lambda *error: ["".join(lines(*error))])
    options = doctest.ELLIPSIS
    return doctest.testfile(str(page), module_relative=False, globs={"client": client}, optionflags=options)


@pytest.mark.parametrize("page", ["ml", "placement", "spmd"])
def test_the_examples_run(client4, page, monkeypatch):
    outcome = run(DOCS / f"{page}.md", client4, monkeypatch)

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


@pytest.mark.parametrize("page", TASKS, ids=lambda page: page.stem)
def test_the_sessions_of_tasks_run(client4, page, monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    outcome = run(page, client4, monkeypatch)

    assert outcome.attempted >= 3
    assert outcome.failed == 0


def test_python_of_tasks_that_is_no_session_runs_as_a_configuration():
    blocks = [
        code for page in (DOCS / "howto").glob("*.md") for code in PLAIN.findall(page.read_text(encoding="utf-8"))
    ]
    assert blocks
    for code in blocks:
        config = Config()
        exec(compile(code, "configuration", "exec"), {"c": config})  # noqa: S102  (of a page of this project)
        assert config
