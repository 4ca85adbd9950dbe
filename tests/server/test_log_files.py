"""Parts of log files: by their names alone, and whole characters."""

from __future__ import annotations

import os

import pytest
from support.raised import raises

from workbench.deploy.folder import ClusterFolder
from workbench.errors import ClusterNotFound
from workbench.lab.server.log_files import listing, part


@pytest.fixture
def logs(cluster):
    """Return the folder of logs of cluster ``a``."""
    return ClusterFolder.of(cluster("a")).logs


def test_the_files_are_told_by_name_and_size(logs):
    (logs / "head.log").write_text("one")
    (logs / "rank-3.log").write_text("")
    (logs / "other.txt").write_text("no log")
    (logs / "folder.log").mkdir()
    (logs / "secret.log").symlink_to("/etc/hostname")

    assert listing("a") == [{"name": "head", "size": 3}, {"name": "rank-3", "size": 0}]


@pytest.mark.parametrize("file", ["secret", "../a/head", "head.log", "", "..", "other", "folder", "pipe"])
def test_what_is_not_listed_is_not_read(logs, file):
    (logs / "head.log").write_text("one")
    (logs / "folder.log").mkdir()
    (logs / "secret.log").symlink_to("/etc/hostname")
    os.mkfifo(logs / "pipe.log")

    with raises(ClusterNotFound, given=file):
        part("a", file, 0)


def test_a_part_of_one_log_looks_at_no_other(logs, monkeypatch):
    (logs / "head.log").write_text("one")
    monkeypatch.setattr(os, "scandir", None)

    assert part("a", "head", 0)["text"] == "one"


def test_parts_follow_one_another(logs):
    text = "ä€🙂\n" * 60_000
    (logs / "head.log").write_text(text)

    read, begin = "", 0
    while (told := part("a", "head", begin))["text"]:
        assert len(told["text"].encode()) <= 256 << 10
        read, begin = read + told["text"], told["next"]

    assert read == text
    assert begin == told["size"] == len(text.encode())


def test_a_part_can_be_shown_and_its_colors_and_carriage_returns_are_left(logs):
    forged = "\x1b]0;PWNED\x07 \x1b[31m1 %\r2 %\x1b[m\r\n" + "a" * (1 << 20)
    (logs / "head.log").write_bytes(forged.encode())

    shown = part("a", "head", 0)

    assert shown["text"].startswith("\\x1b]0;PWNED\\x07 \x1b[31m1 %\r2 %\x1b[m\r\naaa")
    assert len(shown["text"]) < 10_000
    assert shown["next"] == 256 << 10


@pytest.mark.parametrize(("half", "rest"), [("\x1b", "[31m"), ("\x1b[", "m"), ("\x1b[1;3", "1m")])
def test_a_color_that_is_not_written_to_its_end_yet_is_told_later(logs, half, rest):
    (logs / "head.log").write_text(f"a{half}")
    told = part("a", "head", 0)
    (logs / "head.log").write_text(f"a{half}{rest}")

    assert (told["text"], told["next"]) == ("a", 1)
    assert part("a", "head", told["next"])["text"] == half + rest


def test_the_end_is_told_by_a_number_below_zero(logs):
    (logs / "head.log").write_text("0123456789")

    assert part("a", "head", -4) == {"text": "6789", "next": 10, "size": 10}
    assert part("a", "head", -40)["text"] == "0123456789"


def test_a_character_that_is_not_written_to_its_end_yet_is_told_later(logs):
    (logs / "head.log").write_bytes(b"a" + "€".encode()[:2])
    told = part("a", "head", 0)
    (logs / "head.log").write_bytes("a€".encode())

    assert (told["text"], told["next"]) == ("a", 1)
    assert part("a", "head", told["next"])["text"] == "€"


def test_of_a_file_that_is_shorter_than_what_was_read_nothing_is_told(logs):
    (logs / "head.log").write_text("new")

    assert part("a", "head", 100) == {"text": "", "next": 3, "size": 3}


def test_a_cluster_that_was_asked_for_a_moment_ago_has_no_logs_yet(logs):
    logs.rmdir()

    assert listing("a") == []


def test_the_logs_of_a_cluster_that_has_ended_are_there(cluster):
    record = cluster("was")
    (ClusterFolder.of(record).logs / "head.log").write_text("its end")
    ClusterFolder.of(record).remove()

    assert part("was", "head", 0)["text"] == "its end"


def test_the_logs_of_each_cluster_of_a_name_are_there(cluster):
    first = cluster("a")
    (ClusterFolder.of(first).logs / "head.log").write_text("the first")
    ClusterFolder.of(first).remove()
    second = cluster("a")
    (ClusterFolder.of(second).logs / "head.log").write_text("the second")

    assert [part("a", "head", 0, key=record.id)["text"] for record in (first, second)] == ["the first", "the second"]
    assert listing("a", first.id) == [{"name": "head", "size": 9}]
    assert part("a", "head", 0)["text"] == "the second"


@pytest.mark.parametrize("key", ["0" * 32, "", "../../..", "*"])
def test_a_cluster_that_has_no_logs_has_none(logs, key):
    with raises(ClusterNotFound, option=""):
        listing("a", key)
