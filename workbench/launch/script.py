"""The file with the script of a job."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from workbench.errors import LaunchError
from workbench.files.private import opener
from workbench.launch.interface import JobSpec


def after_prologue(shebang: str, prologue: Sequence[str], lines: Sequence[str]) -> list[str]:
    """Return the prologue of a site followed by lines for ``sh``, to which a C shell passes control."""
    if not is_csh(shebang):
        return [*prologue, *lines]
    # The script of `sh` is its standard input, which the command must not read.
    # A C shell compares the last line with the word as written, with its quotes.
    end = "'workbench-end-of-script'"
    return [*prologue, f"exec /bin/sh << {end}", *lines[:-1], f"{lines[-1]} </dev/null", end]


def is_csh(shebang: str) -> bool:
    """Return whether the first line of a script names a C shell, which cannot read the lines of `sh`."""
    return re.search(r"\bt?csh\b", shebang) is not None


def write_script(spec: JobSpec, text: str, removed: Sequence[str]) -> None:
    """Write a job's script, and into the job's log the names of the variables that were removed.

    Raises
    ------
    LaunchError
        If script or log cannot be written.
    """
    note = "left out of the environment, since they belong to an enclosing job or rank, or contradict the job:"
    try:
        with open(os.open(spec.script, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o700), "w", encoding="utf-8") as file:
            file.write(text)
        # In any case the file is made with private permissions before the job writes into it.
        with open(spec.log, "a", encoding="utf-8", opener=opener) as log:
            if removed:
                log.write(f"{note} {', '.join(removed)}\n")
    except OSError as error:
        raise LaunchError(
            f"cannot write {error.filename or spec.script}: {error.strerror}.",
            hint="Check the permissions, the free space of the disk and your quota.",
        ) from error
