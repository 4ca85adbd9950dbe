"""Directives whose text comes from the code, so that no page repeats what a table or a class says.

Each directive writes Markdown, which the page parses where the directive stands.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import settings_table as table
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import benchmarks
from workbench import bench, errors
from workbench.commands.subcommand import ARGUMENT_GROUPS, SUBCOMMAND_GROUPS, Argument, Subcommand, grouped
from workbench.commands.table import NOTEBOOK, TERMINAL, subcommands
from workbench.launch.options import GROUPS, ClusterOption, options
from workbench.metrics import schema

ROOT = Path(__file__).parents[2]
# A command of JupyterLab in the table of the extension: the meaning and the id.
COMMAND = re.compile(r"/\*\* (.+) \*/\s+\w+: '(mpi-workbench:[\w-]+)'")


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(" ".join(cell.split()).replace("|", r"\|") for cell in cells) + " |"

    head = list(head)
    return "\n".join([line(head), line(["---"] * len(head)), *map(line, rows)])


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def subcommand_pages() -> str:
    """Return a section for each group of subcommands, with a section for each subcommand."""
    every = {**subcommands(NOTEBOOK), **subcommands(TERMINAL)}.values()
    return "\n\n".join(f"## {_sentence(group)}\n\n{_sections(its)}" for group, its in grouped(every, SUBCOMMAND_GROUPS))


def _sections(its: Iterable[Subcommand]) -> str:
    sections = []
    for subcommand in its:
        lines = [place for place in (NOTEBOOK, TERMINAL) if place in subcommand.places]
        usage = "\n".join(
            " ".join(
                [
                    place,
                    subcommand.name,
                    *(each.usage for each in subcommand.arguments if not each.is_option),
                    "[options]",
                ]
            )
            for place in lines
        )
        arguments = subcommand.at(lines[-1])
        parts = grouped(arguments, ("", *ARGUMENT_GROUPS)) if subcommand.name == "start" else [("", arguments)]
        tables = [
            (f"**{_sentence(group)}**\n\n" if group else "")
            + _table(["argument", "meaning"], [(_typed(each), _sentence(each.help)) for each in part])
            for group, part in parts
        ]
        sections.append(
            f"### {subcommand.name}\n\n{_sentence(subcommand.help)}.\n\n```text\n{usage}\n```\n\n" + "\n\n".join(tables)
        )
    return "\n\n".join(sections)


def _typed(argument: Argument) -> str:
    names = ", ".join([argument.name, *argument.aliases]) if argument.is_option else ""
    return f"`{' '.join(filter(None, [names, argument.metavar]))}`"


def option_tables() -> str:
    """Return a table for each group of options of a cluster."""

    def row(each: ClusterOption) -> tuple[str, ...]:
        default = "" if each.default in {None, ()} else f"; default: `{each.default!r}`"
        return f"`{each.typed}`", f"`{each.name}`", f"{' or '.join(each.kinds)}{default}", each.doc

    head = ["typed", "in Python", "type", "meaning"]
    return "\n\n".join(
        f"## {_sentence(group)}\n\n{_table(head, map(row, its))}" for group, its in grouped(options(), GROUPS)
    )


def settings() -> str:
    """Return a table of the settings with their variables and descriptions."""
    rows = []
    for each in table.settings():
        variable = "DASK_WORKBENCH__" + each.name.upper().replace(".", "__").replace("-", "_")
        rows.append([f"`workbench.{each.name}`<br>`{variable}`", f"`{each.text}`", _sentence(each.help)])
    return _table(["setting and variable", "default", "meaning"], rows)


def exceptions() -> str:
    """Return the tree of the exceptions as a table."""
    found: list[tuple[int, type]] = []

    def visit(cls: type, depth: int) -> None:
        found.append((depth, cls))
        for each in cls.__subclasses__():
            if each.__module__ == errors.__name__:
                visit(each, depth + 1)

    visit(errors.WorkbenchError, 0)
    rows = []
    for depth, cls in found:
        builtin = next((each.__name__ for each in cls.__bases__ if each.__module__ == "builtins"), "")
        name = "\u00a0" * 4 * depth + f"{{py:exc}}`~workbench.errors.{cls.__name__}`"
        page, _, anchor = cls.docs.partition("#")
        link = f"[help](../{page}.md{'#' if anchor else ''}{anchor})"
        rows.append((name, f"`{builtin}`" if builtin else "", (inspect.getdoc(cls) or "").partition("\n")[0], link))
    return _table(["exception", "is also a", "raised when", "what to do"], rows)


def exception_classes() -> str:
    """Return the documentation of the base class, and an entry for each other class: all have the same parameters."""
    others = [
        f".. py:exception:: workbench.errors.{name}\n\n   {inspect.getdoc(cls)}\n"
        for name, cls in vars(errors).items()
        if isinstance(cls, type) and issubclass(cls, errors.WorkbenchError) and cls is not errors.WorkbenchError
    ]
    base = ".. autoexception:: workbench.errors.WorkbenchError\n   :members:\n"
    return "\n".join(["```{eval-rst}", base, *others, "```"])


def measured() -> str:
    """Return the tables of what is measured."""
    tables = {
        "Of each rank": schema.RANK_COLUMNS,
        "Of each node": schema.NODE_COLUMNS,
        "Of each MPI operation": schema.OPERATION_COLUMNS,
        "Of each pair of ranks or nodes": schema.TRAFFIC_COLUMNS,
    }
    parts = []
    for title, columns in tables.items():
        # The meaning of totals has their unit.
        units = ["unit"] if any(each.unit for each in columns) else []
        rows = [[f"`{each.name}`", *(each.unit.replace("_", " ") for _ in units), each.help] for each in columns]
        parts.append(f"## {title}\n\n{_table(['column', *units, 'meaning'], rows)}")
    return "\n\n".join(parts)


def _lab_schema() -> dict[str, Any]:
    return json.loads((ROOT / "extension" / "schema" / "plugin.json").read_text(encoding="utf-8"))


def lab_commands() -> str:
    """Return the commands of JupyterLab with their shortcuts."""
    shortcuts = {each["command"]: each for each in _lab_schema()["jupyter.lab.shortcuts"]}
    source = (ROOT / "extension" / "src" / "tokens.ts").read_text(encoding="utf-8")
    rows = []
    for meaning, identifier in COMMAND.findall(source):
        typed = " ".join(shortcuts.get(identifier, {}).get("keys", [])).replace("Accel", "Ctrl").replace(" ", "+")
        rows.append((f"`{identifier}`", meaning, f"{{kbd}}`{typed}`" if typed else ""))
    return _table(["command", "meaning", "keys"], rows)


def lab_settings() -> str:
    """Return the settings of the extension of JupyterLab."""
    rows = []
    for name, each in _lab_schema()["properties"].items():
        choices = ", ".join(f"`{choice['const']}`" for choice in each.get("oneOf", []))
        rows.append(
            (f"`{name}`", each.get("description", f"{each['title']}."), f"`{json.dumps(each['default'])}`", choices)
        )
    return _table(["setting", "meaning", "default", "values"], rows)


def benches() -> str:
    """Return the table of what can be measured."""
    rows = [(f"`workbench bench {name}`", each) for name, each in bench.BENCHES.items()]
    rows += [(f"`make bench-{name}`", each) for name, each in benchmarks.BENCHES.items()]
    return _table(["command", "measures"], [(command, _sentence(each)) for command, each in rows])


WRITERS: dict[str, Callable[[], str]] = {
    "subcommands": subcommand_pages,
    "options": option_tables,
    "settings": settings,
    "exceptions": exceptions,
    "exception-classes": exception_classes,
    "metrics": measured,
    "lab-commands": lab_commands,
    "lab-settings": lab_settings,
    "benches": benches,
}


class FromCode(SphinxDirective):
    """``{from-code} NAME``: what the code says of NAME."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Parse the Markdown of the writer."""
        writer = directives.choice(self.arguments[0], list(WRITERS))
        return self.parse_text_to_nodes(WRITERS[writer](), allow_section_headings=True)


def setup(app: Sphinx) -> dict[str, bool]:
    """Have the directive."""
    app.add_directive("from-code", FromCode)
    return {"parallel_read_safe": True}
