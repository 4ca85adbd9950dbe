"""The memory that ranks of a node share."""

from __future__ import annotations

import errno
import os
import stat

from support.raised import raises

from workbench.metrics.shared_slots import SharedSlots


def test_a_rank_reads_what_another_has_written_last(tmp_path):
    mine, others = SharedSlots(tmp_path / "board"), SharedSlots(tmp_path / "board")
    mine.write(3, {"cpu": 1.0})
    mine.write(3, {"cpu": 2.0})
    assert others.read(3) == {"cpu": 2.0}
    assert others.read(0) is None
    mine.close()
    others.close()


def test_what_is_being_written_is_nothing_new(tmp_path):
    board = SharedSlots(tmp_path / "board")
    board.write(0, list(range(100)))
    with open(tmp_path / "board", "r+b") as file:
        file.seek(40)
        file.write(b"\x00\x01")
    assert board.read(0) is None
    board.close()


def test_what_has_no_room_is_not_written(tmp_path):
    board = SharedSlots(tmp_path / "board")
    board.write(0, "before")
    board.write(0, b"x" * 100_000)
    assert board.read(0) == "before"
    assert board.read(1) is None
    board.close()


def test_it_is_for_nobody_else_and_takes_no_memory_that_is_not_used(tmp_path):
    board = SharedSlots(tmp_path / "board")
    board.write(511, "x")
    assert board.read(511) == "x"
    assert board.read(7) is None
    status = (tmp_path / "board").stat()
    assert stat.S_IMODE(status.st_mode) == 0o600
    assert status.st_blocks * 512 < 100_000
    board.close()


def test_full_memory_is_an_error_and_no_signal(tmp_path, monkeypatch):
    board = SharedSlots(tmp_path / "board")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with raises(OSError, errno=errno.ENOSPC):
        board.write(0, "x")
    board.close()
