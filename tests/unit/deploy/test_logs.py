"""Logs are found while a cluster runs and after, in an order that reads well."""

from __future__ import annotations

import os

import pytest
from support.raised import raises

from workbench.deploy import logs, registry
from workbench.deploy.folder import ClusterFolder
from workbench.deploy.record import Record
from workbench.errors import ClusterNotFound, InvalidRequest


@pytest.fixture
def record(tmp_path, monkeypatch):
    """Return the record of a cluster without logs."""
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    made = Record(name="a", ranks=2)
    registry.create(made)
    return made


def write(record, **texts):
    """Write logs: names with _ for - and . for nothing else."""
    for stem, text in texts.items():
        (ClusterFolder.of(record).logs / f"{stem.replace('_', '-')}.log").write_text(text)


def test_nothing_of_a_log_is_an_order_to_the_terminal_and_the_file_is_as_it_was(record):
    forged = b"x\x1b]0;PWNED\x07\x9b\xe2\x80\xae\rrank 0 is well\n" + b"a" * (1 << 20)
    (ClusterFolder.of(record).logs / "world-0.log").write_bytes(forged)
    for shown in (logs.read(ClusterFolder.of(record).logs), logs.tail(ClusterFolder.of(record).logs)):
        assert r"x\x1b]0;PWNED\x07" in shown
        assert not {"\x1b", "\x07", "\r", "\u202e"} & set(shown)
        assert len(shown) < 10_000
    assert (ClusterFolder.of(record).logs / "world-0.log").read_bytes() == forged


def test_the_folder_is_found_while_the_cluster_runs_and_after(record):
    assert registry.logs_of("a") == ClusterFolder.of(record).logs
    ClusterFolder.of(record).remove()
    assert registry.logs_of("a") == ClusterFolder.of(record).logs


def test_a_cluster_that_never_was_has_no_logs(record):
    with raises(ClusterNotFound, option="name", given="b", allowed=("a",)):
        registry.logs_of("b")


def test_all_logs_are_one_text_with_head_worlds_and_ranks_in_order(record):
    for stem in (
        "rank-10",
        "rank-9",
        "world-10",
        "world-1",
        "world-0",
        "head",
        "other-x",
        "z",
    ):
        (ClusterFolder.of(record).logs / f"{stem}.log").write_text(f"text of {stem}\n")
    (ClusterFolder.of(record).logs / "core").write_text("no log")
    text = logs.read(ClusterFolder.of(record).logs)
    titles = [line.split()[1] for line in text.splitlines() if line.startswith("==>")]
    expected = ["head", "world-0", "world-1", "world-10", "rank-9", "rank-10"]
    assert titles[: len(expected)] == expected
    assert sorted(titles[len(expected) :]) == ["other-x", "z"]
    assert "==> rank-9 <==\ntext of rank-9\n" in text


def test_no_logs_are_an_empty_text(record):
    assert logs.read(ClusterFolder.of(record).logs) == ""


@pytest.mark.parametrize("rank", [1, "1"])
def test_the_log_of_one_rank_is_its_text_alone(record, rank):
    write(record, head="head\n", rank_1="1\n")
    assert logs.read(ClusterFolder.of(record).logs, rank) == f"{rank}\n"


@pytest.mark.parametrize("rank", [2, -1, "x", "", "0\n", True, "../head", "w1.7"])
def test_another_rank_is_refused_with_those_there_are(record, rank):
    write(record, head="head", rank_0="0", rank_1="1")
    with raises(InvalidRequest, option="rank", allowed=("0", "1")) as caught:
        logs.read(ClusterFolder.of(record).logs, rank)
    assert repr(rank) in str(caught.value)


def test_output_that_is_no_text_is_shown_as_well_as_can_be(record):
    (ClusterFolder.of(record).logs / "rank-0.log").write_bytes(b"before \xff after")
    assert logs.read(ClusterFolder.of(record).logs, 0) == "before � after"


def test_the_tail_is_that_of_the_world_below_its_path(record):
    write(record, head="head\n", world_0="$ mpiexec -n 2\n\nImportError: no module\n")
    assert (
        logs.tail(ClusterFolder.of(record).logs)
        == f"{ClusterFolder.of(record).logs / 'world-0.log'}:\n    ImportError: no module"
    )


def test_the_world_that_spoke_last_comes_first(record):
    write(record, world_0="old", world_1="new")
    os.utime(ClusterFolder.of(record).logs / "world-0.log", (1, 1))
    assert logs.tail(ClusterFolder.of(record).logs) == f"{ClusterFolder.of(record).logs / 'world-1.log'}:\n    new"


@pytest.mark.parametrize("world", ["", "$ mpiexec -n 2 python\n", "\n \n"])
def test_a_world_without_output_leaves_the_word_to_the_head(record, world):
    write(record, head="OSError: no space\n", world_0=world)
    assert (
        logs.tail(ClusterFolder.of(record).logs)
        == f"{ClusterFolder.of(record).logs / 'head.log'}:\n    OSError: no space"
    )


def test_a_tail_has_the_last_lines_alone(record):
    write(record, head="".join(f"{i}\n" for i in range(100)))
    assert logs.tail(ClusterFolder.of(record).logs, lines=2).splitlines()[1:] == ["    98", "    99"]
    assert len(logs.tail(ClusterFolder.of(record).logs).splitlines()) == 16


def test_what_a_rank_says_of_its_failure_comes_before_what_mpi_says_of_the_abort(record):
    said = ["Traceback", f"{logs.FAILURE}rank 1: no disk", "MPI_ABORT was invoked", *["more of mpiexec"] * 50]
    write(record, world_0="\n".join(said))
    assert logs.tail(ClusterFolder.of(record).logs).splitlines()[1:] == ["    Traceback", "    rank 1: no disk"]


def test_the_first_rank_that_fails_at_the_last_start_tells_why(record):
    first = [f"{logs.COMMAND}mpiexec -n 2", f"{logs.FAILURE}rank 0: no disk"]
    others = [f"{logs.FAILURE}rank 1: no license", f"{logs.FAILURE}rank 0: rank 1 is gone"]
    write(record, world_0="\n".join([*first, f"{logs.COMMAND}mpiexec -n 2", "Traceback", *others]))
    assert logs.tail(ClusterFolder.of(record).logs).splitlines()[1:] == ["    Traceback", "    rank 1: no license"]


def test_the_tail_of_a_failure_that_the_head_has_told_is_not_its_own_log(record):
    write(record, head="ERROR mpi4py finds no MPI library\n")
    assert logs.tail(ClusterFolder.of(record).logs, head=False) == ""


def test_no_output_at_all_is_said(record):
    assert logs.tail(ClusterFolder.of(record).logs) == f"{ClusterFolder.of(record).logs} has no output"
