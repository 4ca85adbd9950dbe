"""Objects that do something when a rank unpickles them. Ranks import this file by its name."""

from __future__ import annotations

import getpass
import pdb  # noqa: T100  (what a test is about)
import sys
import time
from pathlib import Path

import workbench.rank


class Does:
    """Calls a function of this module when it is unpickled."""

    def __init__(self, function, *args):
        self._call = function, args

    def __reduce__(self):
        return self._call


def on_rank_1(function, *args):
    return function(*args) if workbench.rank.current().rank == 1 else None


def leave():
    sys.exit("no license")


def stop():
    return next(iter(()))


def loop(path):
    Path(path).touch()
    while True:
        time.sleep(0.001)


def sleep(seconds, path):
    Path(path).touch()
    time.sleep(seconds)


def size(comm, thing):
    return comm.size


def ask(comm):
    return input("who? ")


def ask_secretly(comm):
    return getpass.getpass()


def debug(comm):
    pdb.set_trace()  # noqa: T100  (what the test is about)
    return comm.size


def slow_to_pack(comm, path):
    class Slow:
        def __reduce__(self):
            return loop(path)

    return Slow()
