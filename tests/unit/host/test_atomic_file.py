"""Where a subcommand writes what was asked for, and what becomes of a file that is there."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from support.raised import raises

from workbench.commands import actions
from workbench.deploy.record import Record
from workbench.errors import InvalidRequest
from workbench.host import files

RECORD = Record(name="mine", ranks=2)


@pytest.fixture(autouse=True)
def _connected(monkeypatch):
    cluster = SimpleNamespace(openmetrics=lambda: "# EOF\n", metrics=lambda table: pd.DataFrame({table: [1]}))

    @contextmanager
    def connected(record, bound):
        yield cluster

    monkeypatch.setattr(actions, "connected", connected)


def test_metrics_go_to_the_home_folder_where_that_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))

    assert actions.metrics(RECORD, "ranks", "~/ranks.csv") == "~/ranks.csv has the metrics of cluster 'mine'"
    actions.metrics(RECORD, "ranks", "~/ranks.parquet")
    actions.metrics(RECORD, None, "~/all.txt")

    assert (tmp_path / "ranks.csv").read_text() == "ranks\n1\n"
    assert pd.read_parquet(tmp_path / "ranks.parquet")["ranks"].tolist() == [1]
    assert (tmp_path / "all.txt").read_text() == "# EOF\n"


def test_metrics_that_find_no_room_leave_the_file_as_it_was(tmp_path, monkeypatch):
    file = tmp_path / "ranks.csv"
    file.write_text("old")

    def full(path, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", full)
    with raises(InvalidRequest, option="out", given=str(file)):
        actions.metrics(RECORD, "ranks", str(file))

    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_is_refused_in_a_folder_where_none_can_be_made_beside_it(tmp_path, monkeypatch):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    (tmp_path / "link").symlink_to("kept/file")
    # root may write everywhere
    monkeypatch.setattr("os.access", lambda path, _: Path(path) != tmp_path / "kept")

    for file in ("kept/file", "kept/new", "link"):
        with raises(InvalidRequest, option="out", given=str(tmp_path / file)):
            files.validate("--out", str(tmp_path / file))
    assert files.validate("--out", str(tmp_path / "new")) == tmp_path / "new"


@pytest.mark.parametrize("file", ["a" * 300, "a\0b", "\ud800"])
def test_a_name_that_no_file_can_have_is_refused(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with raises(InvalidRequest, option="out", given=repr(file)):
        files.validate("--out", file)


def test_a_pipe_is_written_to_and_stays_one(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    end = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)

    actions.metrics(RECORD, None, str(pipe))

    assert os.read(end, 100) == b"# EOF\n"
    os.close(end)
    assert pipe.is_fifo()


def test_a_link_to_itself_is_no_file(tmp_path):
    link = tmp_path / "ranks.csv"
    link.symlink_to(link)
    with raises(InvalidRequest, option="out", given=repr(str(link))):
        files.validate("--out", str(link))


def test_a_file_and_then_its_new_name_are_on_the_disk(tmp_path, monkeypatch):
    """Without the second step a power loss brings back the former file."""
    path, synced = tmp_path / "record.json", []

    def fsync(number):
        synced.append((Path(f"/proc/self/fd/{number}").resolve(), path.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    files.replace(path, b"{}", 0o600)
    (file, _), folder = synced
    assert file.parent == tmp_path
    assert folder == (tmp_path, True)


def test_a_file_system_that_cannot_sync_a_folder_is_no_error(tmp_path, monkeypatch):
    def fsync(number):
        if Path(f"/proc/self/fd/{number}").resolve() == tmp_path:
            raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "fsync", fsync)
    files.replace(tmp_path / "a", b"{}", 0o600)
    assert (tmp_path / "a").read_bytes() == b"{}"
