from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from workbench.bench import BENCHES, options
from workbench.commands.table import NOTEBOOK, TERMINAL, subcommands

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
# Their links are checked when the site is built, where the notebooks are among the pages.
OF_THE_SITE = sorted((ROOT / "docs").glob("*/*.md"))
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

LINK = re.compile(r"\]\((?!https?://)([^)#\s]+)")
OPTION = re.compile(r"--[a-z-]+")
CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)
# `from workbench import` and paths are no commands
CALL = re.compile(rf"(?:(?<=`)|(?<=\s)|(?<=\$ ))(?<!from )({NOTEBOOK}|{TERMINAL}) ([a-z-]+)([^`\n]*)")


def calls():
    """Yield place, subcommand and the rest of the line of every call in the code of the pages and the notebooks."""
    for page in (*PAGES, *OF_THE_SITE, *NOTEBOOKS):
        for code in CODE.findall(page.read_text(encoding="utf-8")):
            for place, subcommand, rest in CALL.findall(code):
                yield page.name, place, subcommand, rest


def test_the_documents_name_only_subcommands_and_options_that_there_are():
    wrong, seen = [], set()
    for page, place, subcommand, rest in calls():
        if subcommand.startswith("--"):
            continue
        seen.add(subcommand)
        known = subcommands(place).get(subcommand)
        allowed = {"--help", *(argument.name for argument in known.at(place))} if known else set()
        if subcommand == "bench" and (bench := next(iter(rest.split()), "NAME")) != "NAME":
            allowed |= {*OPTION.findall(options(bench).format_help())} if bench in BENCHES else set()
            known = known if bench in BENCHES else None
        named = set(OPTION.findall(rest.partition("#")[0]))
        if known is None or named - allowed:
            wrong.append(f"{page}: {place} {subcommand}{rest}")

    assert wrong == []
    assert seen == {*subcommands(NOTEBOOK), *subcommands(TERMINAL)}, "every subcommand is in the documents"


def test_the_guide_has_every_option_of_start_and_every_setting():
    guide = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
    options = [argument.name for argument in subcommands(NOTEBOOK)["start"].arguments if argument.is_option]
    settings = yaml.safe_load((ROOT / "workbench" / "workbench.yaml").read_text(encoding="utf-8"))["workbench"]
    rows = [f"| `{option}" for option in options]
    for name, value in settings.items():
        rows += [f"| `{name}.{inner}` |" for inner in value] if isinstance(value, dict) else [f"| `{name}` |"]

    assert [row for row in rows if row not in guide] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page):
    links = LINK.findall(page.read_text(encoding="utf-8"))

    assert [link for link in links if not (page.parent / link).exists()] == []
