"""No code reads the words of errors of the workbench, and hints name buttons that there are."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from support.sources import trees

from workbench import errors, hints

ROOT = Path(__file__).parents[2]
OURS = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)}
# What takes a text apart, or looks for something in it.
READS = {"endswith", "find", "index", "partition", "removeprefix", "removesuffix", "rpartition", "rsplit", "split"} | {
    "splitlines", "startswith", "findall", "fullmatch", "match", "search", "sub",
}  # fmt: skip


def _names(node):
    return {its.id for its in ast.walk(node) if isinstance(its, ast.Name)} if node is not None else set()


def _read(tree):
    """Yield the lines that read the words of an error that was caught as one of ours."""
    for handler in ast.walk(tree):
        if not (isinstance(handler, ast.ExceptHandler) and handler.name and _names(handler.type) & OURS):
            continue
        for node in ast.walk(handler):
            if isinstance(node, ast.Compare) and any(isinstance(its, ast.In | ast.NotIn) for its in node.ops):
                read = node.comparators
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in READS:
                read = [node.func.value, *node.args]
            else:
                continue
            if any(_is_words(its, handler.name) for its in read):
                yield node.lineno


def _is_words(node, error):
    match node:
        case ast.Call(func=ast.Name(id="str"), args=[ast.Name(id=name)]):
            return name == error
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="words" | "text")):
            return name == error
        case ast.Attribute(value=ast.Name(id=name), attr="message"):
            return name == error
    return False


@pytest.mark.parametrize(
    "line",
    ['str(error).partition("\\n")', 're.match("a", str(error))', '"a" in str(error)', 'error.message.startswith("a")'],
)
def test_a_line_that_reads_an_error_is_found(line):
    code = (
        f"try: pass\nexcept InvalidRequest as error:\n    print({line})\nexcept ValueError as error:\n    print({line})"
    )

    assert list(_read(ast.parse(code))) == [3]


def test_no_code_reads_the_words_of_an_error():
    found = [(path.relative_to(ROOT), line) for path, tree in trees().items() for line in _read(tree)]

    assert found == []


@pytest.mark.parametrize("label", hints.BUTTONS.values())
def test_a_button_of_a_hint_is_in_the_panel(label):
    sources = [path.read_text("utf-8") for path in (ROOT / "extension" / "src").rglob("*.tsx")]

    assert any(f"__('{label}" in source for source in sources)
