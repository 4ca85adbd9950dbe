"""What readers look for is two clicks away from the home page of the site."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
HOME = DOCS / "index.md"
TASKS = DOCS / "reference" / "tasks.md"

LINK = re.compile(r"\]\((?!https?://)([^)\s]+)\)")
CARD = re.compile(r"^:link: (\S+)$", re.MULTILINE)
TOCTREE = re.compile(r"^```\{toctree\}\n(.*?)^```", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#{1,4} (.+)$", re.MULTILINE)
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
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


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page: its headings, as in the site and in repositories, and its targets."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    slugs = {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in HEADING.findall(text)}
    return slugs | set(TARGET.findall(text))


def tasks():
    rows = [line for line in TASKS.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    return [row.split(" | ") for row in rows if "[" in row]


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
