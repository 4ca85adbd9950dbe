"""What readers look for is two clicks away from the home page of the site."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.patience import DEADLINE

from workbench import errors

DOCS = Path(__file__).parents[2] / "docs"
CODE = DOCS.parent / "workbench"
HOME = DOCS / "index.md"
TASKS = DOCS / "reference" / "tasks.md"

# Prints the names that an import does not find. This process gets no MPI.
UNKNOWN = """
import pydoc, sys
import mpi4py
mpi4py.rc.initialize = False
print(*(name for name in sys.argv[1:] if pydoc.locate(name) is None))
"""

# Parts of the messages in the documentation that the code fills in, besides names in quotes and capitals, and numbers.
VALUES = re.compile(
    r"a package and a command|Slurm|PBS|Open MPI|MPICH|mpich|sbatch|mpiexec|ranks-per-node|--mpi"
    r"|'[^']*'|\b[A-Z]{2,}\b|\S*\d\S*|\S*/\S*|\.\.\.|…|: "
)
# What source code has between two words of a message.
BETWEEN = r"""(?:[^\w{}]|\{[^{}]*\}|f(?=["']))+"""
SECTION = re.DOTALL | re.MULTILINE
LINK = re.compile(r"\]\((?!https?://)([^)\s]+)\)")
CARD = re.compile(r"^:link: (\S+)$", re.MULTILINE)
TOCTREE = re.compile(r"^```\{toctree\}\n(.*?)^```", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#{1,4} (.+)$", re.MULTILINE)
FENCE = re.compile(r"^```.*?^```", SECTION)
TARGET = re.compile(r"^\(([\w-]+)\)=$", re.MULTILINE)


def file_of(page: Path, name: str) -> Path:
    """Return the file that a page names, with or without the ending."""
    found = (page.parent / name).resolve()
    return next((each for each in (found, *map(found.with_suffix, (".md", ".rst"))) if each.is_file()), found)


def clicks(page: Path) -> set[Path]:
    """Return the pages that a reader reaches from a page by one click."""
    text = page.read_text(encoding="utf-8")
    entries = [line for tree in TOCTREE.findall(text) for line in tree.splitlines() if line and line[0] != ":"]
    links = [link.partition("#")[0] for link in LINK.findall(text)]
    return {file_of(page, name) for name in (*entries, *CARD.findall(text), *links) if name}


def slug(heading: str) -> str:
    """Return the anchor of a heading."""
    return re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-")


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page: its headings, as in the site and in repositories, and its targets."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    return set(map(slug, HEADING.findall(text))) | set(TARGET.findall(text))


def tasks():
    rows = [line for line in TASKS.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    return [row.split(" | ") for row in rows if "[" in row]


KINDS = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, errors.WorkbenchError)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_names_a_section_that_names_the_error(kind):
    page, _, anchor = kind.docs.partition("#")
    target = DOCS / f"{page}.md"

    assert target.is_file()
    assert not anchor or anchor in anchors(target)
    assert kind.__name__ in target.read_text(encoding="utf-8") or kind is errors.WorkbenchError
    assert kind("sentence.").fields()["docs"] == kind.docs


def test_every_family_of_messages_belongs_to_an_error():
    families = re.search(r"^## Messages$(.*?)^## ", (DOCS / "troubleshooting.md").read_text(encoding="utf-8"), SECTION)
    named = {kind.docs for kind in KINDS}

    assert {f"troubleshooting#{slug(title)}" for title in re.findall(r"^### (.+)$", families[1], re.MULTILINE)} <= named


def test_a_message_on_the_page_of_troubles_is_one_of_the_code():
    page = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    [families] = re.findall(r"^## Messages$(.*?)^## ", page, SECTION)
    quoted = re.findall(r"`([^`]+)`", "".join(re.findall(r"^\| (.*?) \|", families, re.MULTILINE)))
    parts = [re.findall(r"[A-Za-z][\w-]*", part) for message in quoted for part in VALUES.split(message)]
    code = "\n".join(file.read_text(encoding="utf-8") for file in CODE.rglob("*.py"))

    missing = [words for words in parts if not re.search(BETWEEN.join(words), code)]

    assert len(parts) > 60
    assert missing == []


def test_the_names_of_other_projects_exist():
    # Heat has its own environment.
    inventories = [file for file in (DOCS / "_inventories").iterdir() if file.name != "heat.inv"]
    lines = [line for file in inventories for line in file.read_text(encoding="utf-8").splitlines()]
    names = [line.split()[0] for line in lines if line[0] != "#"]

    done = subprocess.run(
        [sys.executable, "-c", UNKNOWN, *names], check=True, capture_output=True, text=True, timeout=DEADLINE
    )

    assert len(names) > 40
    assert done.stdout.split() == ["None"], "the only name whose value is None"


def test_a_picture_is_in_a_page_and_in_both_themes_and_a_test_takes_the_picture():
    pages = "".join(page.read_text(encoding="utf-8") for page in DOCS.rglob("*.md"))
    tests = "".join(file.read_text(encoding="utf-8") for file in DOCS.parent.glob("tests/*/test_*.py"))
    shown = set(re.findall(r"images/([\w-]+)-light\.png", pages))

    # `workbench bench transport` draws the plot.
    files = {file.stem for file in (DOCS / "images").iterdir()} - {"transport"}
    assert files == {f"{name}-{theme}" for name in shown for theme in ("light", "dark")}
    assert [name for name in shown if f'"{name}"' not in tests] == []


def test_the_page_of_tasks_is_one_click_from_the_home_page():
    assert TASKS in clicks(HOME)
    assert len(tasks()) >= 20


@pytest.mark.parametrize("row", tasks(), ids=lambda row: row[0].strip("| "))
def test_a_task_is_at_most_two_clicks_from_the_home_page(row):
    path = LINK.findall(row[-1])
    page = HOME
    for link in path:
        name, _, anchor = link.partition("#")
        target = file_of(TASKS, name)
        assert target in clicks(page), f"{page.name} leads to {target.name}"
        assert not anchor or anchor in anchors(target), f"{target.name} has #{anchor}"
        page = target

    assert 1 <= len(path) <= 2
