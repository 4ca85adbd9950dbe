"""The folder of the user, in which head and ranks run, as a place of modules."""

from __future__ import annotations

import os
import sys


def append() -> None:
    """Let tasks and calls import modules of the user's folder, where no ``queue.py`` may hide a module of a library.

    ``python -P`` leaves this folder out of the path, and ``python -m`` would search it first.
    """
    sys.path.append(os.getcwd())  # noqa: PTH109  (as the interpreter writes it)
