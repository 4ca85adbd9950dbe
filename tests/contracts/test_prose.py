"""Pages, notebooks and comments are in plain technical English, as far as a regular expression can find that."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.sources import trees

from benchmarks import BENCHES as OF_DEVELOPERS
from workbench.bench import BENCHES
from workbench.commands.table import subcommands
from workbench.hints import NOTEBOOK, TERMINAL
from workbench.metrics import schema

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("**/*.md"))]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SOURCES = [
    *(path for name in ("benchmarks", "docs", "tests", "workbench") for path in (ROOT / name).rglob("*.py")),
    *(ROOT / "packaging").rglob("*.py"),
    *(ROOT / "extension").glob("*.py"),
    *filter(Path.is_file, (ROOT / ".ci").glob("*")),
    *ROOT.glob("environment*.yml"),
    ROOT / "Makefile",
    ROOT / "pyproject.toml",
]
TRANSLATED = re.compile(r"trans\.(?:__|_n)\(\s*(['\"`])(.*?)(?<!\\)\1", re.DOTALL)
# Mean words of a sentence, at most.
MEAN = 16

FENCE = re.compile(r"^```.*?^```[^\n]*$", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`[^`]+`")
TARGET = re.compile(r"\]\([^)]*\)")
COMMENT = re.compile(r"(?:^|\s)# ?(.+)$", re.MULTILINE)
DOCSTRING = re.compile(r'"""(.*?)"""', re.DOTALL)
DOCTEST = re.compile(r"^ *(?:>>>|\.\.\.) .*$", re.MULTILINE)

# What is found, and what to write in its place. Inline code is `x` here, and blocks of code are left out.
BANNED = {
    r"\bof (?:yours|theirs|(?:its|their|your) own)\b": "your ..., its own ..., a separate ...",
    r"\bcannot be:": "is not valid",
    r"\ballowed (?:is|are)\b": "valid values: ...",
    r"\b(?:tells?|telling|told)\b": "report, print, show, list, indicate",
    r"\bmay come again\b": "may be repeated",
    r"\b(?:twice|times|bytes|operations?|lines?|one|threads?) an? (?:second|minute|line|rank|node|operation)\b": "per",
    r"(?-i:\bSLURM\b)": "Slurm",
    r"(?-i:(?<!\.)\b(?:numpy|scipy)\b(?!\.))": "NumPy, SciPy",
    r"(?<!Jupyter)(?-i:\bLab\b)": "JupyterLab",
    r"\bat once\b": "immediately, or simultaneously",
    r"\b(?:whoever|nobody|somebody)\b": "a user, a process, a client, nothing",
    r"\bin (?:vain|words)\b": "the fact",
    r", that (?:stays?|never|is|are|has|have)\b": "no comma before a restrictive clause",
    r"\bgo(?:es)? on\b": "continue, keep running",
    r"\bcom(?:e|es) to the same\b": "is the same as",
    r"\b(?:has|have|is|are) to be\b": "must be",
    r", as `x`": "for example",
    r"\bby (?:Dask|MPI|joblib)\b": "with, over, using",
    r"\b(?:calls?|cells?|functions?) on all ranks\b": "SPMD call, `%%mpi` cell",
    r"\bverbs?\b": "subcommand",
    r"\b(?:speaks?|hears?|heard|believes?)\b": "send, receive, use, find",
    r"\bdaskified\b": "Dask version",
    r"\bwhat for what\b": "equivalents",
    r"\b(?:colour|centre|behaviour|neighbour|honour|flavour|favour|licence)\w*": "American spelling",
    r"\b(?:serial|initial|final|normal|optim|standard|recogn|summar|author)is(?:e|es|ed|ing|ation)\b": "-ize",
    r"(?-i:\b[Cc]ancell(?:ed|ing|able)\b)": "canceled, canceling, cancelable",
    r"^#.*\?$": "a heading is a noun phrase or a task",
}
# In comments a clause as this one is right: "a file with permissions, as `chmod` sets them".
OF_COMMENTS = {pattern: better for pattern, better in BANNED.items() if better != "for example"}
# A table without a header row is found in the page as it is.
HEADLESS = re.compile(r"^\|(?: *\|)+$", re.MULTILINE)


def written(page: Path) -> str:
    """Return the Markdown of a page, or of the cells of a notebook."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".ipynb":
        cells = (cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown")
        text = "\n\n".join("".join(cell["source"]) for cell in cells)
    return text


def prose(page: Path) -> str:
    text = FENCE.sub("", written(page))
    return INLINE.sub("`x`", TARGET.sub("]", text))


def sentences(text: str) -> list[str]:
    """Return the sentences of paragraphs and lists: tables and headings have none."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith(("|", "#", "!"))]
    paragraphs = re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.) ", "\n".join(lines))
    found = [part for paragraph in paragraphs for part in re.split(r"(?<=[.!?:])\s+", paragraph.strip())]
    return [sentence for sentence in found if len(sentence.split()) > 2]


def messages(tree: ast.Module) -> Iterator[str]:
    """Yield what users read of a module: the texts of `raise` and of `help=`."""
    for node in ast.walk(tree):
        parts: list[ast.AST] = [node] if isinstance(node, ast.Raise) else []
        parts += [word.value for word in getattr(node, "keywords", []) if word.arg in {"help", "hint"}]
        for part in parts:
            for text in ast.walk(part):
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    yield text.value


def hits(text: str) -> list[str]:
    """Return the patterns that a text matches, and what to write."""
    plain = INLINE.sub("`x`", text)
    return [better for pattern, better in BANNED.items() if re.search(pattern, plain, re.IGNORECASE)]


def comments(path: Path) -> Iterator[str]:
    """Yield the comments of a file, and its docstrings without their code."""
    source = path.read_text(encoding="utf-8")
    yield from COMMENT.findall(source)
    # A program in quotes begins with an empty line.
    docstrings = [text for text in DOCSTRING.findall(source) if not text.startswith(("\n", "\\\n"))]
    yield from (" ".join(DOCTEST.sub("", text).split()) for text in docstrings)


def test_comments_have_no_banned_phrase():
    found = {
        f"{path.relative_to(ROOT)}: {match[0]!r}": better
        for path in SOURCES
        for text in ["\n".join(INLINE.sub("`x`", each) for each in comments(path))]
        for pattern, better in OF_COMMENTS.items()
        for match in re.finditer(pattern, text, re.IGNORECASE)
    }

    assert found == {}


def test_messages_have_no_banned_phrase():
    found = {
        f"{file}: {text}": better for file, tree in trees().items() for text in messages(tree) if (better := hits(text))
    }

    assert found == {}


def of_tables() -> Iterator[str]:
    """Yield what help and generated pages show: sentences of subcommands, settings, measurements and benches."""
    for subcommand in {**subcommands(NOTEBOOK), **subcommands(TERMINAL)}.values():
        yield from (subcommand.help, subcommand.group, *(each.help for each in subcommand.arguments))
    settings = (ROOT / "workbench" / "workbench.yaml").read_text(encoding="utf-8")
    yield from re.findall(r"# *(.+)$", settings, re.MULTILINE)
    for columns in (schema.RANK_COLUMNS, schema.NODE_COLUMNS, schema.OPERATION_COLUMNS, schema.TRAFFIC_COLUMNS):
        yield from (column.help for column in columns)
    yield from (BENCHES | OF_DEVELOPERS).values()


def test_what_generated_pages_show_has_no_banned_phrase():
    assert {text: hits(text) for text in of_tables() if hits(text)} == {}


def test_translated_texts_have_no_banned_phrase():
    files = sorted((ROOT / "extension" / "src").glob("*/**/*.ts*"))
    texts = [text for file in files for _, text in TRANSLATED.findall(file.read_text(encoding="utf-8"))]

    assert texts
    assert {text: hits(text) for text in texts if hits(text)} == {}


def test_pages_have_no_banned_phrase():
    found = [
        f"{page.relative_to(ROOT)}: {line.strip()!r}: write {better}"
        for page in (*PAGES, *NOTEBOOKS)
        for line in prose(page).splitlines()
        for pattern, better in BANNED.items()
        if re.search(pattern, line, re.IGNORECASE)
    ]

    assert found == []


def test_tables_have_a_header_row():
    assert [str(page.relative_to(ROOT)) for page in (*PAGES, *NOTEBOOKS) if HEADLESS.search(written(page))] == []


@pytest.mark.parametrize("name", ["README.md", "docs/guide.md"])
def test_sentences_are_short(name):
    lengths = [len(sentence.split()) for sentence in sentences(prose(ROOT / name))]

    assert sum(lengths) / len(lengths) <= MEAN
