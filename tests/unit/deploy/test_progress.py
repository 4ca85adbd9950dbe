from __future__ import annotations

import contextlib
import io
import os
import re
import select

import pytest

from workbench.deploy.display import Progress


def start(*, quiet=False):
    """Show the start of three ranks."""
    with Progress(3, quiet=quiet) as progress:
        for state, up in (("submitted", 0), ("world starting", 0), ("world starting", 1), ("ready", 3), ("ready", 3)):
            progress.show(state, up)


def test_a_file_gets_one_line_for_each_state(monkeypatch):
    file = io.StringIO()
    monkeypatch.setattr("sys.stderr", file)

    start()

    lines = [re.sub(r"[\d.]+ s$", "T", line) for line in file.getvalue().splitlines()]
    assert lines == ["submitted · 0 of 3 ranks T", "world starting · 0 of 3 ranks T", "ready · 3 of 3 ranks T"]


def _read_line(screen):
    """Return what comes up to the end of a line; a terminal hands it over in pieces."""
    shown = b""
    while not shown.endswith(b"\n"):
        assert select.select([screen], [], [], 10)[0], f"no more comes after {shown!r}"
        shown += screen.read(10_000)
    return shown.decode()


def test_a_terminal_gets_one_line_that_is_replaced(monkeypatch):
    ours, theirs = os.openpty()
    with open(ours, "rb", buffering=0) as screen, open(theirs, "w", encoding="utf-8") as terminal:
        monkeypatch.setattr("sys.stderr", terminal)

        start()
        terminal.flush()

        shown = _read_line(screen)
    assert shown.count("\n") == 1
    drawn = [line.removesuffix("\x1b[K") for line in shown.rstrip().split("\r")[1:]]
    assert len(drawn) == 4
    assert re.fullmatch(r"world starting · 1 of 3 ranks \|█{6} {14}\| [\d.]+ s", drawn[2])
    assert re.fullmatch(r"ready · 3 of 3 ranks \|█{20}\| [\d.]+ s", drawn[3])


@pytest.mark.parametrize("shown", ["world starting", "failed"])
def test_a_start_that_fails_says_so_once(shown, monkeypatch):
    file = io.StringIO()
    monkeypatch.setattr("sys.stderr", file)

    with contextlib.suppress(RuntimeError), Progress(3, quiet=False) as progress:
        progress.show(shown, 1)
        raise RuntimeError

    assert file.getvalue().splitlines()[-1].startswith("failed · 1 of 3 ranks")
    assert file.getvalue().count("failed") == 1


def test_a_quiet_start_shows_nothing(capfd):
    start(quiet=True)

    assert capfd.readouterr() == ("", "")
