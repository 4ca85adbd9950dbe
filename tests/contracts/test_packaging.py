"""The recipes for other package managers have the names and the versions of pyproject.toml."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from workbench.commands.table import NOTEBOOK, TERMINAL, subcommands

ROOT = Path(__file__).parents[2]
PACKAGING = ROOT / "packaging"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DEPENDENCIES = {each.name: each.specifier for each in map(Requirement, PROJECT["dependencies"])}
# names that differ on conda-forge
CONDA = {"jupyter-core": "jupyter_core", "jupyter-server": "jupyter_server"}
OF_VERSION = [
    "conda/recipe.yaml",
    "spack/py-mpi-workbench/package.py",
    "easybuild/mpi-workbench-*.eb",
    "lmod/*.lua",
    "apptainer/mpi-workbench.def",
]


def read(name: str) -> str:
    (path,) = PACKAGING.glob(name)
    return path.name + "\n" + path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", OF_VERSION)
def test_a_package_has_the_version_of_the_project(name):
    found = set(re.findall(r"(?:[vV]ersion(?:: | = |\()?|Version )[\"' ]*(\d+\.\d+\.\d+)\b", read(name)))

    assert found == {PROJECT["version"]}


def test_the_recipe_of_conda_has_the_dependencies_of_the_project():
    text = (PACKAGING / "conda" / "recipe.yaml").read_text(encoding="utf-8")
    recipe = yaml.safe_load(re.sub(r"\$\{\{.*?\}\}", "x", text))
    run = {
        name: SpecifierSet(spec) for name, _, spec in (each.partition(" ") for each in recipe["requirements"]["run"])
    }

    wanted = {CONDA.get(name, name): spec for name, spec in DEPENDENCIES.items()}
    assert run == wanted | {"python": SpecifierSet(PROJECT["requires-python"])}
    assert set(recipe["build"]["python"]["entry_points"]) == {
        f"{name} = {target}" for name, target in PROJECT["scripts"].items()
    }


def test_the_package_of_spack_has_the_dependencies_of_the_project():
    text = (PACKAGING / "spack" / "py-mpi-workbench" / "package.py").read_text(encoding="utf-8")
    found = dict(re.findall(r'depends_on\("py-([\w-]+)@([\d.]+:[\d.]*)"', text))
    found.pop("hatchling")

    def ranges(spec):
        """Return the range of Spack, whose upper end is part of the range."""
        low = next(each.version for each in spec if each.operator == ">=")
        high = next((each.version for each in spec if each.operator == "<"), "")
        head, dot, last = high.rpartition(".")
        return f"{low}:{f'{head}{dot}{int(last) - 1}' if high else ''}"

    assert found == {name: ranges(spec) for name, spec in DEPENDENCIES.items()}
    assert f'depends_on("python@{PROJECT["requires-python"].lstrip(">=")}:"' in text


def test_the_citation_has_the_version_and_the_authors_of_the_project():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))

    assert str(cited["version"]) == PROJECT["version"]
    assert cited["license"] == PROJECT["license"]
    assert cited["authors"] == PROJECT["authors"]
    assert cited["abstract"] == PROJECT["description"]


def test_the_form_for_bugs_asks_for_what_doctor_finds():
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / "bug.yml").read_text(encoding="utf-8"))
    labels = {each["attributes"]["label"]: each.get("validations", {}).get("required", False) for each in form["body"]}

    assert labels["Output of `workbench doctor --json`"]


def test_easybuild_has_the_homepage_and_the_description_of_the_project():
    text = read("easybuild/mpi-workbench-*.eb")

    assert f"homepage = '{PROJECT['urls']['Repository']}'" in text
    assert f'description = "{PROJECT["description"]}"' in text


def test_the_containers_install_extras_that_there_are():
    extras = set(PROJECT["optional-dependencies"])
    for name in ("docker/Dockerfile", "apptainer/mpi-workbench.def"):
        (named,) = re.findall(r"/opt/mpi-workbench\[([\w,]+)\]", read(name))
        assert set(named.split(",")) <= extras
    (named,) = re.findall(r"'\.\[([\w,]+)\]'", (ROOT / "binder" / "postBuild").read_text(encoding="utf-8"))
    assert set(named.split(",")) <= extras


def test_the_manual_page_has_every_subcommand_of_a_terminal_with_its_options():
    page = (PACKAGING / "man" / "workbench.1").read_text(encoding="utf-8")
    page = re.sub(r"\\(f[BIP]|&)", "", page).replace(r"\-", "-").replace(r"\(aq", "'")
    sections = dict(re.findall(r"^\.SS (\S+)\n(.*?)(?=^\.S[SH] )", page, re.MULTILINE | re.DOTALL))

    assert f'"{PROJECT["version"]}" "MPI Workbench"' in page
    assert set(sections) == set(subcommands(TERMINAL)) | set(subcommands(NOTEBOOK))
    for subcommand in subcommands(TERMINAL).values():
        texts = [subcommand.help, *(each.help for each in subcommand.arguments)]
        assert [text for text in texts if text[1:] not in sections[subcommand.name]] == []
        named = {
            each.split(",")[0].split()[0] for each in re.findall(r"^\.B (.+)$", sections[subcommand.name], re.MULTILINE)
        }
        assert named == {each.name if each.is_option else each.metavar for each in subcommand.at(TERMINAL)}
