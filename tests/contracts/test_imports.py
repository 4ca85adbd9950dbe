from __future__ import annotations

import ast
import itertools
import json
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from dataclasses import dataclass
from importlib.metadata import packages_distributions
from pathlib import Path

import grimp
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from support.patience import DEADLINE
from support.sources import PACKAGE, trees

# Packages that only the command and users import.
WINGS = {"bench", "lab", "ml", "torch", "tune"}


@dataclass(frozen=True)
class Rule:
    """Where a module may be imported: paths below the package, a folder standing for everything in it."""

    module: str
    anywhere: tuple[str, ...] = ()
    in_functions: tuple[str, ...] = ()


RULES = [
    Rule(
        "mpi4py.MPI",
        anywhere=("mpi", "rank", "bench", "torch"),
        in_functions=("comm", "collective", "cells", "fork/hello.py", "ml"),
    ),
    Rule("panel", anywhere=("lab/dashboard",)),
    Rule("sklearn", anywhere=("ml", "bench", "torch/estimators.py")),
    Rule("torch", anywhere=("torch",), in_functions=("bench", "gpu")),
    Rule("optuna", in_functions=("tune", "bench")),
    Rule("jupyter_server", anywhere=("lab/server",)),
    Rule("dask_jobqueue", in_functions=("launch/jobqueue.py",)),
]


def imports(tree: ast.AST, *, in_function: bool = False) -> list[tuple[str, bool, int]]:
    """Return every import that may run: the full name, whether a function holds it, and its line."""
    found = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            continue
        if isinstance(node, ast.Import):
            found += [(alias.name, in_function, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [(f"{node.module}.{alias.name}", in_function, node.lineno) for alias in node.names]
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        found += imports(node, in_function=in_function or is_function)
    return found


@pytest.fixture(scope="module")
def imported() -> list[tuple[Path, str, bool, int]]:
    """Return every import of the package: the module, and what `imports` returns of it."""
    return [(path, *found) for path, tree in trees().items() for found in imports(tree)]


def is_in(path: Path, places: tuple[str, ...]) -> bool:
    return any(path.is_relative_to(PACKAGE / place) for place in places)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.module)
def test_a_module_is_imported_only_where_its_rule_allows_it(rule, imported):
    offences = [
        f"{path.relative_to(PACKAGE)}:{line} imports {name}"
        for path, name, in_function, line in imported
        if f"{name}.".startswith(f"{rule.module}.")
        and not is_in(path, rule.anywhere)
        and not (in_function and is_in(path, rule.in_functions))
    ]

    assert offences == []


def test_lazy_collections_are_persisted_in_one_place():
    """Dask's ``persist`` returns dataframes with partitions that were not computed."""
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if (isinstance(node, ast.Attribute) and node.attr == "persist" and ast.unparse(node.value) != "sources")
        or (isinstance(node, ast.alias) and node.name == "persist")
    }
    assert found == {"placement/sources.py"}


def test_no_interpreter_that_the_package_starts_searches_modules_in_the_folder_of_the_user_first():
    lines = {}
    for path, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.List | ast.Tuple):
                for program, option in itertools.pairwise(map(ast.unparse, [*node.elts, ast.Constant("none")])):
                    if program in {"sys.executable", "self.python"}:
                        lines[f"{path.name}:{node.lineno}"] = option.strip("'")

    assert len(lines) > 10
    assert {line: option for line, option in lines.items() if option not in {"-P", "-I"}} == {}


def test_every_package_that_is_imported_is_a_declared_dependency(imported):
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    used = ("demo", "lab", "bench", "torch", "tune", "gpu", "heat", "peers")
    listed = [*project["dependencies"], *(item for extra in used for item in extras[extra])]
    declared = {canonicalize_name(Requirement(item).name) for item in listed}
    # Not in the environment of the tests, and of another name than its distribution.
    distributions = {"daal4py": ["scikit-learn-intelex"], "pynvml": ["nvidia-ml-py"]} | packages_distributions()

    undeclared = [
        f"{path.relative_to(PACKAGE)}:{line} imports {name}"
        for path, name, _, line in imported
        if (package := name.partition(".")[0]) not in {"workbench", *sys.stdlib_module_names}
        and declared.isdisjoint(map(canonicalize_name, distributions.get(package, [package])))
    ]

    assert undeclared == []


def circles(imported_by: dict[str, set[str]]) -> list[list[str]]:
    """Return the sets of modules that reach one another by their imports, sorted."""
    reach = {module: {module} for module in imported_by}
    changed = True
    while changed:
        changed = False
        for module, before in reach.items():
            more = set().union(*(reach[other] for other in imported_by[module])) - before
            before.update(more)
            changed |= bool(more)
    rings = {frozenset(other for other in reach[module] if module in reach[other]) for module in reach}
    return sorted(sorted(ring) for ring in rings if len(ring) > 1)


def test_a_circle_of_imports_is_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": set()}) == [["a", "b", "c"]]


def test_no_files_import_each_other_in_a_circle():
    graph = grimp.build_graph("workbench", cache_dir=None)
    # The root package leads to everything, and no module of the core imports it: a contract of import-linter.
    modules = graph.modules - {"workbench"}

    assert circles({module: graph.find_modules_directly_imported_by(module) & modules for module in modules}) == []


def test_a_package_is_entered_by_the_doors_that_its_docstring_names():
    graph, entered = grimp.build_graph("workbench", cache_dir=None), defaultdict(set)
    for module in graph.modules:
        package = f"{module}.".split(".")[1]
        for other in graph.find_modules_directly_imported_by(module):
            parts = other.split(".")
            if len(parts) == 3 and parts[1] not in {package, *WINGS}:
                entered[parts[1]].add(parts[2])

    named = {}
    for path in PACKAGE.glob("*/__init__.py"):
        if path.parent.name not in WINGS:
            text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            named[path.parent.name] = set(re.findall(r"`(\w+)`", text.partition("Doors: ")[2].partition("\n\n")[0]))
    assert entered == {package: doors for package, doors in named.items() if doors}

    page = (PACKAGE.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)/` \|.*\| (`\w+`(?:, `\w+`)*) \|$", page, re.MULTILINE)
    assert {package: set(re.findall(r"\w+", doors)) for package, doors in rows} == entered, "the table of the page"


BASE = {"call_stack", "cancellation", "config", "errors", "hints", "lazy", "positions", "session", "text"}


def packages_that_import(modules: frozenset[str]) -> dict[str, set[str]]:
    """Return which packages and modules at the top import which others; those at the bottom as one, ``base``."""

    def package(module: str) -> str:
        name = module.split(".")[1]
        return "base" if name in BASE else name

    graph, found = grimp.build_graph("workbench", cache_dir=None), defaultdict(set)
    for module in modules:
        for other in graph.find_modules_directly_imported_by(module) & modules:
            found[package(module)].add(package(other))
    return {one: others - {one} for one, others in found.items()}


def drawn() -> dict[str, set[str]]:
    """Return which package has arrows to which others in the drawing of docs/architecture.md."""
    text = (PACKAGE.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    arrows = defaultdict(set)
    for line in text.partition("graph TD\n")[2].partition("```")[0].splitlines():
        steps = [[name.partition("[")[0].strip() for name in step.split("&")] for step in line.split("-->")]
        for ones, others in itertools.pairwise(steps):
            for one in ones:
                arrows[one].update(others)
    return arrows


def reached(arrows: dict[str, set[str]], one: str) -> set[str]:
    """Return all that arrows lead to."""
    others = arrows.get(one, set())
    return others.union(*(reached(arrows, other) for other in others))


def test_the_drawing_of_the_packages_shows_their_imports():
    modules = frozenset(grimp.build_graph("workbench", cache_dir=None).modules - {"workbench", "workbench.__main__"})
    imports, arrows = packages_that_import(modules), drawn()

    assert {one: others - imports[one] for one, others in arrows.items() if others - imports[one]} == {}, "not imported"
    hidden = {one: others - reached(arrows, one) for one, others in imports.items()}
    assert {one: others for one, others in hidden.items() if others} == {}, "not drawn, and not implied"


def python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=DEADLINE
    ).stdout


def test_importing_the_package_loads_neither_mpi_nor_dask_nor_a_server():
    loaded = json.loads(python("import workbench, json, sys; print(json.dumps(sorted(sys.modules)))"))

    heavy = {"mpi4py.MPI", "distributed", "dask", "panel", "sklearn", "jupyter_server", "numpy"}
    assert heavy.isdisjoint(loaded)


def test_loading_the_magics_loads_neither_mpi_nor_dask_nor_libraries_of_data():
    loaded = json.loads(python("import workbench.commands.magics, json, sys; print(json.dumps(sorted(sys.modules)))"))

    assert {"mpi4py.MPI", "distributed", "dask", "ipyparallel", "numpy", "pandas", "panel"}.isdisjoint(loaded)


def test_a_rank_loads_nothing_of_the_log_at_debug_and_the_command_loads_no_logging():
    for modules, absent in (
        ("workbench.rank.__main__, workbench.rank.worker", "workbench.host.debug_log"),
        ("workbench.cli", "logging"),
    ):
        assert python(f"import sys, {modules}; print({absent!r} in sys.modules)") == "False\n"


def test_importing_the_package_takes_less_than_twice_the_time_of_importing_dask():
    def seconds(module: str) -> float:
        return float(python(f"from time import perf_counter as t; a = t(); import {module}; print(t() - a)"))

    ours, dasks = zip(*[(seconds("workbench"), seconds("dask")) for _ in range(5)], strict=True)

    assert min(ours) < 2 * min(dasks)


def cleanups(tree):
    """Return the statements that run when a task is canceled: those of each ``finally``, and of each handler."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Try):
            yield from node.finalbody
            for handler in node.handlers:
                caught = ast.unparse(handler.type) if handler.type else "BaseException"
                if "BaseException" in caught or "CancelledError" in caught:
                    yield from handler.body


def test_no_second_cancellation_skips_what_a_finally_awaits():
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}: {ast.unparse(node)}"
        for path, tree in trees().items()
        if path.name != "cancellation.py"
        for statement in cleanups(tree)
        for node in ast.walk(statement)
        if isinstance(node, ast.AsyncWith | ast.AsyncFor)
        or (isinstance(node, ast.Await) and not ast.unparse(node).startswith("await run_to_end("))
    ]
    assert not found, "await workbench.cancellation.run_to_end(...) there"
