"""`%mpicluster` in a real shell, as far as no cluster has to run."""

from __future__ import annotations

import os

import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.error import UsageError
from support.shell import ipython

from workbench.commands import actions
from workbench.deploy import registry
from workbench.deploy.folder import ClusterFolder, clusters_folder
from workbench.deploy.record import Record


@pytest.fixture(scope="module")
def shell():
    with ipython() as shell:
        yield shell


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch, tmp_path):
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("start 0", r"^ranks '0' is not valid. Choose a whole number from 1 to 100000, e\.g\. ranks=4\.$"),
        ("start -3", r"^ranks '-3' is not valid. Choose a whole number from 1"),
        ("start eight", r"^ranks 'eight' is not valid. Choose a whole number from 1"),
        ("start 2.5", r"^ranks '2\.5' is not valid. Choose a whole number from 1"),
        ("report out", r"^report 'out' is not valid\. Choose a name that ends in \.html, for example out\.html: .*\.$"),
        ("start {unknown}", r"^ranks '{unknown}' is not valid. Choose a whole number from 1"),
        ("start 2 --threads none", r"^threads 'none' is not valid. Choose a whole number from 1"),
        ("start 2 --memory lots", r"^memory 'lots' is not valid. Choose a size above zero for each rank, e\.g\. 2GB"),
        (
            "start 2 --mpi mpihc",
            r"^mpi 'mpihc' is not valid. Did you mean 'mpich'\? \(allowed: auto, openmpi, mpich, intelmpi\)\.$",
        ),
        (
            "start 2 --scheduler locl",
            r"^scheduler 'locl' is not valid. Did you mean 'local'\? \(allowed: auto, local, here, slur.*\)\.$",
        ),
        ("start 2 --protocol udp", r"^protocol 'udp' is not valid\. "),
        ("start 2 --idle-timeout -1", r"^idle-timeout '-1' is not valid. Choose a time above zero"),
        ("start 2 --name 'a b'", r"^name 'a b' is not valid. Choose 1 to 40 letters, digits"),
        ("stat", r"^%mpicluster stat: no such subcommand. Did you mean 'status'\?"),
        ("start --rank 2", r"^%mpicluster start: unknown option '--rank'"),
        (
            "attach nobody",
            r"^cluster 'nobody' does not exist\. No cluster runs\. Start a cluster with %mpicluster start\.$",
        ),
        ("stop", r"^no cluster runs\. Start a cluster with %mpicluster start\.$"),
        ("scale 4", r"^no cluster runs\. Start a cluster"),
        ("restart nobody", r"^cluster 'nobody' does not exist"),
        ("logs nobody", r"^cluster 'nobody' does not exist"),
        ("script", r"^no cluster runs\. Start a cluster"),
    ],
)
def test_bad_input_is_a_usage_error_of_one_sentence_and_leaves_nothing(shell, line, message):
    with pytest.raises(UsageError, match=message):
        shell.run_line_magic("mpicluster", line)

    assert registry.names() == []
    assert not {"cluster", "client"} & set(shell.user_ns)


def test_a_record_that_others_can_read_is_refused_with_the_remedy(shell):
    record = Record(name="open", ranks=1)
    registry.create(record)
    ClusterFolder.of(record).path.chmod(0o755)

    with pytest.raises(UsageError, match=r"is open to other users \(mode 755, allowed 700\).*chmod 700"):
        shell.run_line_magic("mpicluster", "attach open")


def test_a_name_that_is_taken_is_told_with_what_can_be_done(shell):
    registry.create(Record(name="mine", ranks=1))

    with pytest.raises(
        UsageError,
        match=r"named 'mine' already exists\. Use that cluster \(%mpicluster attach mine\), stop that cluster",
    ):
        shell.run_line_magic("mpicluster", "start 1 --name mine")


@pytest.mark.parametrize("word", ["{ranks}", "$ranks"])
def test_variables_stand_for_their_values(shell, capsys, word):
    shell.user_ns["ranks"] = 3

    outcome = shell.run_cell(f"%mpicluster start {word} --name dry --dry-run")

    outcome.raise_error()
    assert "# Cluster dry: 3 ranks" in capsys.readouterr().out


def test_a_dry_run_prints_script_and_command_line_and_starts_nothing(shell, capsys):
    shell.run_line_magic("mpicluster", "start 2 --threads 3 --dry-run")

    printed = capsys.readouterr().out
    assert printed.startswith("#!/bin/sh\n")
    assert "-n 2 " in printed
    assert "OMP_NUM_THREADS=3" in printed
    assert registry.names() == []
    assert "cluster" not in shell.user_ns


@pytest.mark.parametrize("line", ["start --help", "start -h", "start 4 --help"])
def test_help_of_a_subcommand_is_printed_and_ends_nothing(shell, capsys, line):
    shell.run_line_magic("mpicluster", line)

    printed = capsys.readouterr().out
    assert printed.startswith("usage: %mpicluster start [N] [options]")
    assert "memory limit of each rank" in printed


def test_the_question_mark_shows_every_subcommand(shell):
    told = shell.object_inspect_text("%mpicluster")

    assert "start and stop:" in told
    assert "%mpicluster start [N] [options]" in told
    assert "%mpicluster stop [NAME] [--all]" in told


def test_an_empty_list_is_shown(shell, capsys):
    shell.run_line_magic("mpicluster", "list")

    assert capsys.readouterr().out == "no cluster runs\n"


def completions(shell, line):
    with provisionalcompleter():
        return [line[: found.start] + found.text for found in shell.Completer.completions(line, len(line))]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("%mpicluster st", ["%mpicluster start", "%mpicluster status", "%mpicluster stop"]),
        ("mpicluster sca", ["mpicluster scale"]),
        ("%mpicluster start 4 --sch", ["%mpicluster start 4 --scheduler"]),
        ("%mpicluster stop --mpi", []),
        ("%mpicluster start --protocol t", ["%mpicluster start --protocol tcp"]),
        ("%mpicluster start --mpi=mp", ["%mpicluster start --mpi=mpich"]),
        ("%mpicluster attach al", ["%mpicluster attach alpha"]),
    ],
)
def test_the_tab_key_completes_subcommands_options_values_and_clusters(shell, line, expected):
    registry.create(Record(name="alpha", ranks=1))

    assert completions(shell, line) == expected


def test_the_tab_key_shows_no_traceback_where_names_cannot_be_read(shell, capsys):
    registry.create(Record(name="alpha", ranks=1))
    clusters_folder().parent.chmod(0o777)

    assert "%mpicluster attach alpha" not in completions(shell, "%mpicluster attach al")
    assert capsys.readouterr().err == ""


def test_other_lines_are_completed_as_ever(shell):
    shell.user_ns["start_of_it"] = 1

    assert "start_of_it" in completions(shell, "start_o")


def test_unloading_takes_magic_and_completion_away(shell):
    shell.extension_manager.unload_extension("workbench")
    try:
        assert completions(shell, "%mpicluster st") == []
        assert "mpicluster" not in shell.magics_manager.lsmagic()["line"]
    finally:
        shell.extension_manager.load_extension("workbench")

    assert completions(shell, "%mpicluster sta") == ["%mpicluster start", "%mpicluster status"]


def test_what_one_subcommand_starts_writes_the_log_if_that_is_asked_for(shell, monkeypatch):
    told = []

    def listing(*, everything):
        told.append(os.environ.get("WORKBENCH_LOG"))
        return actions.Listing([], [], [])

    monkeypatch.setattr(actions, "listing", listing)
    shell.run_line_magic("mpicluster", "list --verbose")
    shell.run_line_magic("mpicluster", "list")

    assert told == ["debug", None]
