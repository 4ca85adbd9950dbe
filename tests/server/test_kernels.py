"""Kernels whose interpreters are on file servers that hang, or fail."""

from __future__ import annotations

import asyncio
import sys
import threading

import pytest
from support.processes import DEADLINE, until
from support.raised import raises

from workbench import __version__
from workbench.errors import InvalidRequest
from workbench.lab.server import kernels, survey
from workbench.lab.server.kernels import Kernels

ASLEEP, STALE = "/asleep/bin/python", "/stale/bin/python"


class Manager:
    """Knows kernels by their names and interpreters."""

    def __init__(self, **interpreters):
        self.interpreters = interpreters

    def get_all_specs(self):
        return {name: {"spec": {"argv": [its], "language": "python"}} for name, its in self.interpreters.items()}


@pytest.fixture
def asleep(monkeypatch):
    """Have one interpreter hang until the test has ended; return what is set as soon as it is looked for."""
    looked, answers, find = threading.Event(), threading.Event(), kernels.interpreter

    def interpreter(argv):
        if argv == [ASLEEP]:
            looked.set()
            answers.wait(DEADLINE)
        if argv == [STALE]:
            raise OSError("Stale file handle")
        return find(argv)

    monkeypatch.setattr(kernels, "interpreter", interpreter)
    yield looked
    answers.set()


async def test_a_kernel_whose_interpreter_hangs_keeps_no_other_and_says_so_itself(asleep, monkeypatch):
    its = Kernels(Manager(asleep=ASLEEP, well=sys.executable))
    asking = asyncio.create_task(its.all())
    assert await asyncio.to_thread(asleep.wait, DEADLINE)

    assert (await its.get("well")).version == __version__

    monkeypatch.setattr(survey, "_PATIENCE", 0.1)
    with raises(InvalidRequest, option=""):
        await its.get("asleep")
    told = {kernel.name: kernel for kernel in await its.all()}
    assert told.keys() == {"asleep", "well"}
    assert told["asleep"].hint.startswith(f"{ASLEEP} has not answered for 0 s: its file server hangs")
    asking.cancel()


@pytest.mark.usefixtures("asleep")
async def test_a_kernel_whose_interpreter_cannot_be_looked_for_says_why_itself():
    told = await Kernels(Manager(stale=STALE, well=sys.executable)).all()

    assert [kernel.hint for kernel in told] == [f"{STALE} does not answer: Stale file handle", None]


async def test_a_kernel_that_is_there_no_more_is_not_looked_at_any_more(threads):
    manager = Manager(one="/one", other="/other")
    its = Kernels(manager)
    await its.all()
    assert len(threads()) == 2

    del manager.interpreters["one"]
    await its.all()

    await asyncio.to_thread(until, "its thread has ended", lambda: len(threads()) == 1)
