"""The script of a job on disk."""

from __future__ import annotations

import os
from collections.abc import Sequence

from workbench.errors import LaunchError
from workbench.launch.interface import JobSpec
from workbench.private import open_to_append


def write_script(spec: JobSpec, text: str, removed: Sequence[str]) -> None:
    """Write a job's script, and into its log what was left out of its environment.

    Raises
    ------
    LaunchError
        If one of them cannot be written.
    """
    try:
        with open(os.open(spec.script, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o700), "w", encoding="utf-8") as file:
            file.write(text)
        # Who runs the script would make its log by the umask.
        with open(open_to_append(spec.log), "a", encoding="utf-8") as log:
            note = "left out of the environment, since they belong to an enclosing job or rank, or contradict the job:"
            if removed:
                log.write(f"{note} {', '.join(removed)}\n")
    except OSError as error:
        raise LaunchError(
            f"cannot write {error.filename or spec.script}: {error.strerror}. Check its permissions, the room on its "
            "disk and your quota."
        ) from error
