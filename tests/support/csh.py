"""A C shell of two commands: ``setenv NAME VALUE``, and ``exec PROGRAM << 'WORD'``; all others are not found."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from pathlib import Path


def install(folder: Path) -> Path:
    """Return the program, which is put into a folder under the name of the shell."""
    program = folder / "csh"
    program.write_text(
        f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(__file__)} "$@"\n', encoding="utf-8"
    )
    program.chmod(0o755)
    return program


def main(script: str) -> None:
    lines = script.splitlines()
    while lines:
        match shlex.split(lines.pop(0), comments=True):
            case []:
                pass
            case ["setenv", name, value]:
                os.environ[name] = value
            case ["exec", program, "<<", word]:
                with tempfile.TemporaryFile("w+") as document:
                    document.write("".join(f"{line}\n" for line in lines[: lines.index(f"'{word}'")]))
                    document.seek(0)
                    os.dup2(document.fileno(), 0)
                os.execv(program, [program])  # noqa: S606
            case [command, *_]:
                sys.exit(f"{command}: Command not found.")


if __name__ == "__main__":
    main(Path(sys.argv[1]).read_text(encoding="utf-8") if len(sys.argv) > 1 else sys.stdin.read())
