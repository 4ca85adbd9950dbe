"""Programs that `workbench` keeps as text name only modules and functions that exist."""

from __future__ import annotations

import ast
import importlib
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]


def _programs(tree):
    """Yield line and syntax tree of each text that is a Python program with an import of `workbench`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "import" in node.value:
            try:
                program = ast.parse(textwrap.dedent(node.value))
            except SyntaxError:
                continue
            if any(_imports(program)):
                yield node.lineno, program


def _imports(program):
    """Yield module and name, None for the module itself, of each import of `workbench` in a program."""
    for node in ast.walk(program):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names if _is_ours(alias.name))
        elif isinstance(node, ast.ImportFrom) and node.module and _is_ours(node.module):
            yield from ((node.module, alias.name) for alias in node.names)


def _is_ours(module):
    return module.partition(".")[0] == "workbench"


def _resolves(module, name):
    try:
        found = importlib.import_module(module)
        if name is not None and not hasattr(found, name):
            importlib.import_module(f"{module}.{name}")
    except ImportError:
        return False
    return True


def test_programs_are_found_and_a_name_that_does_not_exist_is_noticed():
    text = "X = 'from workbench.text import count, no_such_name'\nY = 'import workbench.no_such_module'"
    imports = [each for _, program in _programs(ast.parse(text)) for each in _imports(program)]

    assert [_resolves(*each) for each in imports] == [True, False, False]


def test_the_names_that_programs_import_exist():
    imports = [
        (f"{path.relative_to(ROOT)}:{line}", *each)
        for path in sorted((ROOT / "workbench").rglob("*.py"))
        for line, program in _programs(ast.parse(path.read_text(encoding="utf-8")))
        for each in _imports(program)
    ]
    assert imports
    assert [each for each in imports if not _resolves(*each[1:])] == []
