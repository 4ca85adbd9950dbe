"""A copy of a rank ends like a program."""

from __future__ import annotations

import os

import pytest

from workbench.mpi.context import end_copy


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (None, 0, ""),
        (SystemExit(), 0, ""),
        (SystemExit(0), 0, ""),
        (SystemExit(3), 3, ""),
        (SystemExit(-1), 255, ""),
        (SystemExit("no input"), 1, "no input\n"),
        (ValueError("in the copy"), 1, "ValueError: in the copy\n"),
    ],
)
def test_a_copy_has_the_exit_code_of_a_program(error, code, text, monkeypatch, capsys):
    codes = []
    monkeypatch.setattr(os, "_exit", codes.append)

    end_copy(rank=0, error=error)

    assert codes == [code]
    assert capsys.readouterr().err == text
