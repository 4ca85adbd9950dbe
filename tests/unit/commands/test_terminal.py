"""The command ``workbench``, as far as no cluster has to run."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest
from support.patience import DEADLINE

from workbench import __version__, cli
from workbench.deploy import registry
from workbench.deploy.folder import RECORD, clusters_folder
from workbench.deploy.record import Record
from workbench.errors import from_fields
from workbench.hints import TERMINAL


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch, tmp_path):
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        ("", 2, "workbench: missing subcommand. Choose from: start, status, list, logs,"),
        ("strat", 2, "workbench strat: no such subcommand. Did you mean 'start'? (allowed: start, status, list, logs,"),
        ("attach mpi", 2, "workbench attach: no such subcommand. "),
        ("start --ranks 4", 2, "workbench start: unknown option '--ranks', pass N without an option."),
        ("start 0", 2, "ranks '0' is not valid. Choose a whole number from 1 to 100000, e.g. ranks=4."),
        ("start -3 --json", 2, "ranks '-3' is not valid. Choose a whole number from 1 to 100000, e.g. ranks=4."),
        ("start eight", 2, "ranks 'eight' is not valid. Choose a whole number from 1 to 100000, e.g. ranks=4."),
        ("demo --ranks none", 2, "ranks 'none' is not valid. Choose a whole number from 1 to 100000, e.g. ranks=4."),
        (
            "scale",
            2,
            "workbench scale: the following arguments are required: N. usage: workbench scale N [NAME] [--json]",
        ),
        ("stop nobody", 1, "cluster 'nobody' does not exist. No cluster runs. Start a cluster with `workbench start`."),
        ("stop nobody --all", 2, "stop nobody --all is not valid. Choose either a name or --all"),
        ("status", 1, "no cluster runs. Start a cluster with `workbench start`."),
        ("logs --json", 1, "no cluster runs. Start a cluster with `workbench start`."),
    ],
)
def test_bad_input_is_one_sentence_and_a_code_that_tells_whose_fault_it_is(capsys, line, code, message):
    assert cli.main(line.split()) == code

    out, err = capsys.readouterr()
    if "--json" in line:
        error = from_fields(json.loads(out)["error"])
        assert error.words(TERMINAL) + "\n" == err
    else:
        assert out == ""
    assert err.startswith(message)
    assert err.count("\n") == 1
    assert registry.names() == []


def test_a_record_that_cannot_be_used_is_listed_with_the_others(capsys):
    registry.create(Record(name="good", ranks=1))
    registry.create(Record(name="damaged", ranks=1))
    (clusters_folder() / "damaged" / RECORD).write_text("[]")

    assert cli.main(["list", "--json"]) == 0

    told = json.loads(capsys.readouterr().out)
    assert [cluster["name"] for cluster in told["clusters"]] == ["good"]
    assert [broken["name"] for broken in told["broken"]] == ["damaged"]


def test_a_dry_run_can_be_had_as_json(capsys):
    assert cli.main(["start", "2", "--dry-run", "--json"]) == 0

    assert json.loads(capsys.readouterr().out)["script"].startswith("#!/bin/sh\n# Cluster mpi: 2 ranks")
    assert registry.names() == []


def test_the_version_is_told(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"workbench {__version__}\n"


def test_help_loads_neither_dask_nor_a_notebook():
    code = (
        "import sys; from workbench.cli import main; main(['--help']); print(*sys.modules, sep='\\n', file=sys.stderr)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE, check=True)

    assert done.stdout.startswith("start and stop:\n  workbench start [N]")
    assert {"dask", "distributed", "IPython", "numpy", "yaml"}.isdisjoint(done.stderr.splitlines())


def test_the_module_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "workbench", "strat"], capture_output=True, text=True, timeout=DEADLINE, check=False
    )

    assert done.returncode == 2
    assert done.stderr.startswith("workbench strat: no such subcommand. Did you mean 'start'?")


@pytest.mark.parametrize("line", ["--help", "list", "status --json"])
def test_a_command_whose_reader_leaves_early_ends_silently_as_by_sigpipe(line):
    reader = subprocess.Popen(["true"], stdin=subprocess.PIPE)
    reader.wait(timeout=DEADLINE)

    done = subprocess.run(
        [sys.executable, "-m", "workbench", *line.split()],
        stdout=reader.stdin, stderr=subprocess.PIPE, text=True, timeout=DEADLINE, check=False,
    )  # fmt: skip

    reader.stdin.close()
    assert done.returncode == 128 + signal.SIGPIPE
    assert done.stderr == ""
