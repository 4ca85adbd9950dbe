"""Where a report goes, and what becomes of the file when something is wrong."""

from __future__ import annotations

import json
import stat

import pytest
from support.raised import raises

from workbench import cli
from workbench.deploy import registry
from workbench.deploy.record import Record
from workbench.errors import ClusterNotFound, InvalidRequest, StartError, StartTimeout
from workbench.host.processes import ProcessId
from workbench.lab import html_report
from workbench.lab.html_report import report


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch, tmp_path):
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))


@pytest.fixture
def record():
    record = Record(name="mine", ranks=2, state="ready", process=ProcessId.here())
    registry.create(record)
    return record


def names(folder):
    return sorted(file.name for file in folder.iterdir())


@pytest.fixture
def drawn(monkeypatch):
    monkeypatch.setattr(html_report, "_drawn", lambda name: f"<html>{name}".encode())


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (
            "mine",
            r"report .*mine' is not valid\. Choose a name that ends in \.html, for example .*mine\.html: a report is",
        ),
        ("folder.html", r"the path is a folder\. Name a file"),
        ("nowhere/report.html", r"the folder .*nowhere does not exist\. Create the folder, or name another file"),
    ],
)
def test_what_can_be_no_report_is_refused_before_anything_is_asked(tmp_path, file, message):
    (tmp_path / "folder.html").mkdir()

    with pytest.raises(InvalidRequest, match=message):
        report(str(tmp_path / file), "nobody")


def test_a_file_that_may_not_be_written_is_refused(tmp_path, monkeypatch):
    # root may write everywhere
    monkeypatch.setattr("os.access", lambda *_: False)

    with pytest.raises(InvalidRequest):
        report(str(tmp_path / "report.html"), "nobody")


def test_of_a_cluster_that_has_ended_it_is_said_when_reports_are_made(tmp_path):
    with raises(ClusterNotFound, option="name", given="gone"):
        report(str(tmp_path / "report.html"), "gone")

    assert names(tmp_path) == []


@pytest.mark.usefixtures("drawn")
def test_a_report_replaces_what_is_there_and_is_readable_as_any_other_file(record, tmp_path):
    file, plain = tmp_path / "report.html", tmp_path / "plain"
    plain.touch()
    (tmp_path / "kept.html").write_text("old")
    file.symlink_to("kept.html")

    assert report(str(file), "mine") == f"{file} has the report of cluster 'mine'"

    assert file.is_symlink()
    assert file.read_text() == "<html>mine"
    assert stat.S_IMODE(file.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)
    assert names(tmp_path) == ["jupyter", "kept.html", "plain", "report.html"]


@pytest.mark.usefixtures("drawn", "record")
def test_the_subcommand_takes_the_file_and_then_the_cluster(tmp_path, capsys):
    file = tmp_path / "report.html"

    assert cli.main(["report", str(file), "mine", "--json"]) == 0

    assert json.loads(capsys.readouterr().out) == {"report": f"{file} has the report of cluster 'mine'"}
    assert file.read_text() == "<html>mine"


@pytest.mark.usefixtures("drawn")
def test_a_report_that_finds_no_room_leaves_the_file_as_it_was(record, tmp_path, monkeypatch):
    file = tmp_path / "report.html"
    file.write_text("old")

    def full(path, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.raises(InvalidRequest):
        report(str(file), "mine")

    assert file.read_text() == "old"
    assert names(tmp_path) == ["jupyter", "report.html"]


def test_a_report_that_cannot_be_drawn_says_why_in_its_log(record, tmp_path, monkeypatch):
    monkeypatch.setattr(html_report, "_MODULE", "workbench.nothing")

    with pytest.raises(StartError) as raised:
        report(str(tmp_path / "report.html"), "mine")
    assert "No module named workbench.nothing" in raised.value.log


def test_the_error_of_the_process_that_draws_comes_with_its_fields():
    with raises(ClusterNotFound, option="name", given="nobody") as raised:
        html_report._drawn("nobody")
    assert (raised.value.option, raised.value.given) == ("name", "nobody")


def test_a_report_that_is_not_drawn_in_time_is_given_up(record, tmp_path, monkeypatch):
    monkeypatch.setattr(html_report, "_DEADLINE", 0.001)

    with pytest.raises(StartTimeout):
        report(str(tmp_path / "report.html"), "mine")
