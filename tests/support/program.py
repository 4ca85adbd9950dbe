"""``python -m support.program NAME ID PROGRAM``: a rank that runs a program, given as its text."""

from __future__ import annotations

import sys

import mpi4py

mpi4py.rc.initialize = False


def main(**_: object) -> None:
    """Run the program."""
    exec(compile(sys.argv[3], "program", "exec"), {"__name__": "__main__"})  # noqa: S102  (it is of a test)


if __name__ == "__main__":
    main()
