from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# in pieces, for this file is tracked too
PRIVATE = re.compile(
    "|".join(
        [
            r"/(?:home|Users)/(?!user\b)\w+",
            "/" + "root/",
            "pypi" + r"\.org",
            "python" + r"hosted\.org",
            "anaconda" + r"\.(?:org|com)",
            "registry" + r"\.(?:npmjs|yarnpkg)",
        ],
    ),
)


# Outputs of another machine, as it gave them.
RECORDED = ROOT / "tests" / "data"


def tracked(pattern: str = "*") -> list[Path]:
    # Checkouts of another owner are common in containers, and reading names of files is harmless.
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z", pattern]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=30).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def test_no_file_names_a_private_folder_or_a_package_registry():
    offences = [
        f"{path.relative_to(ROOT)}:{number}: {found.group()}"
        for path in tracked()
        if not path.is_relative_to(RECORDED)
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if (found := PRIVATE.search(line))
    ]

    assert offences == []


def test_notebooks_are_stored_without_outputs():
    offences = [
        f"{path.relative_to(ROOT)}: cell {number}"
        for path in tracked("*.ipynb")
        for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"])
        if cell.get("outputs") or cell.get("execution_count")
    ]

    assert offences == []


def test_no_module_is_longer_than_600_lines():
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for path in tracked("workbench/*.py")
    }

    assert {name: length for name, length in lengths.items() if length > 600} == {}


@pytest.mark.parametrize(
    "target", ["help", "demo", "lab", "test", "test-heat", "lint", "bench-startup", "bench-transport", "clean"]
)
def test_make_knows_its_targets(target):
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}

    done = subprocess.run(
        ["make", "--dry-run", target], cwd=ROOT, env=own, check=False, capture_output=True, text=True, timeout=30
    )

    assert (done.returncode, done.stderr) == (0, "")
