"""Every block of Python of every page, and examples of docstrings, in the cluster that all tests share."""

from __future__ import annotations

import ast
import doctest
import importlib
import re
import shutil
import traceback
from pathlib import Path

import numpy as np
import pytest
from distributed import Client
from IPython.core.inputtransformer2 import TransformerManager
from support.examples import ON_RANKS
from support.shell import ipython
from traitlets.config import Config

import workbench
from workbench import MPICluster
from workbench.commands import actions

ROOT = Path(__file__).parents[2]
# A block, and the output of a block of Python.
BLOCK = re.compile(
    r"^(?P<fence>`{3,})(?P<language>[^\n]*)\n(?P<code>.*?)^(?P=fence)$(?:\n+```text\n(?P<output>.*?)^```$)?",
    re.DOTALL | re.MULTILINE,
)
# A line with the reason why the block does not run as printed.
FRAGMENT = re.compile(r"^# fragment: \w", re.MULTILINE)
SESSION = re.compile(r"^>>> ", re.MULTILINE)
PYTHON = re.compile(r"^(?:>>> |%(?!mpicluster SUBCOMMAND)|import |from \w+ import |def |@\w|\w+ = \w+\()", re.MULTILINE)
PAGES = {
    page.relative_to(ROOT).with_suffix("").as_posix(): page
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
}
RUNNING = {
    name: page
    for name, page in PAGES.items()
    if {block["language"] for block in BLOCK.finditer(page.read_text(encoding="utf-8"))} & {"python", "pycon"}
}


@pytest.fixture
def shell(cluster4, monkeypatch, tmp_path):
    """A notebook of the shared cluster: its starts attach to this cluster, and its stops do nothing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    shutil.copy(ROOT / "notebooks" / "covariance.c", tmp_path)
    monkeypatch.setattr(actions, "start", lambda **_: MPICluster.attach(cluster4.name))
    monkeypatch.setattr(actions, "stop", lambda _: actions.Stopped([], []))
    monkeypatch.setattr("workbench.lab.subcommands.dashboard_url", lambda record: f"/{record.name}")
    with ipython() as shell, MPICluster.attach(cluster4.name) as cluster:
        # A client in a `with` would remain the current one when a page starts another.
        client = Client(cluster)
        shell.push({"cluster": cluster, "client": client, "c": Config()})
        try:
            yield shell
        finally:
            for each in (shell.user_ns.get("client"), client, shell.user_ns.get("cluster")):
                if each:
                    each.close()


def run_session(code, where, names):
    """Run a session of Python's prompt, and compare what it prints."""
    session = doctest.DocTestParser().get_doctest(code, {}, where, where, 0)
    session.globs = names
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(session, clear_globs=False)
    assert runner.summarize(verbose=False).failed == 0


@pytest.mark.parametrize("page", RUNNING)
def test_the_blocks_of_a_page_run_in_their_order(shell, cluster4, page, capsys, monkeypatch):
    # What a rank failed with has notes behind it, and early releases of Python 3.11 look at the last line alone.
    lines = traceback.format_exception_only
    monkeypatch.setattr(traceback, "format_exception_only", lambda *error: ["".join(lines(*error))])
    for block in BLOCK.finditer(RUNNING[page].read_text(encoding="utf-8")):
        # The shared cluster has another name.
        code = block["code"].replace('attach("mpi")', f'attach("{cluster4.name}")')
        if block["language"] == "pycon":
            run_session(code, page, shell.user_ns)
        elif block["language"] == "python" and FRAGMENT.search(code):
            ast.parse(TransformerManager().transform_cell(code))
        elif block["language"] == "python":
            capsys.readouterr()
            shell.run_cell(code).raise_error()
            assert block["output"] in {None, capsys.readouterr().out}


@pytest.mark.parametrize("name", sorted(ON_RANKS))
def test_the_examples_of_a_module_are_right_on_ranks(cluster4, client4, name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "notebooks" / "covariance.c", tmp_path)
    names = {"np": np, "workbench": workbench, "cluster": cluster4, "client": client4, "__name__": "__main__"}
    outcome = doctest.testmod(importlib.import_module(name), extraglobs=names, optionflags=doctest.ELLIPSIS)

    assert outcome.attempted
    assert outcome.failed == 0


def test_python_of_pages_is_marked_as_python():
    others = [
        f"{name}: {block['code']}"
        for name, page in PAGES.items()
        for block in BLOCK.finditer(page.read_text(encoding="utf-8"))
        if block["language"] not in {"python", "pycon"} and PYTHON.search(block["code"])
    ]

    assert others == []
