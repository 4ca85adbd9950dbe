"""Commands that answer as an OpenPBS 23.06 did: its recorded answers are in tests/data/openpbs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_FOLDER = Path(__file__).parents[1] / "data" / "openpbs"


class Recording(NamedTuple):
    """What a command was, and what it has answered."""

    name: str
    command: str
    code: int
    out: str
    err: str


def recording(name: str) -> Recording:
    """Return one recording by its name."""
    command, code, rest = (_FOLDER / f"{name}.txt").read_text(encoding="utf-8").split("\n", 2)
    out, _, err = rest.partition("# stderr:\n")
    return Recording(name, command.removeprefix("# cmd: "), int(code.removeprefix("# rc: ")), out, err)


def recordings(prefix: str) -> Iterator[Recording]:
    """Return the recordings whose names begin so."""
    return map(recording, sorted(path.stem for path in _FOLDER.glob(f"{prefix}*.txt")))


class Replay:
    """A PBS in a folder for PATH whose commands give stored answers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._cases: dict[str, list[str]] = {command: [] for command in ("qsub", "qstat", "qdel", "qselect")}
        self._log = folder / "calls"
        self._log.touch()
        self.answer("qstat --version", out="pbs_version = 23.06.06\n")

    def answer(self, call: str, *, code: int = 0, out: str = "", err: str = "", instead: str = "") -> None:
        """Have a command line answer so; ``*`` at its end stands for any more arguments; `instead` is run if given."""
        command, _, arguments = call.partition(" ")
        pattern = shlex.quote(arguments.removesuffix("*")) + ("*" if arguments.endswith("*") else "")
        told = instead or f"printf %s {shlex.quote(out)}; printf %s {shlex.quote(err)} >&2; exit {code}"
        self._cases[command].insert(0, f"{pattern}) {told} ;;")
        for name, cases in self._cases.items():
            program = self._folder / name
            lines = [f'echo "{name} $*" >>{shlex.quote(str(self._log))}', 'case "$*" in', *cases]
            program.write_text("\n".join(["#!/bin/sh", *lines, "*) echo unexpected >&2; exit 99 ;;", "esac", ""]))
            program.chmod(0o700)

    def replay(self, call: str, name: str) -> None:
        """Have a command line answer as recorded."""
        told = recording(name)
        self.answer(call, code=told.code, out=told.out, err=told.err)

    @property
    def calls(self) -> list[str]:
        """The command lines that were run, but for those that ask for the version."""
        lines = self._log.read_text(encoding="utf-8").splitlines()
        return [line for line in lines if not line.endswith("--version")]
