"""Looks at files that may be on a file server which hangs."""

from __future__ import annotations

import asyncio
import threading

import pytest
from support.processes import until
from support.raised import raises

from workbench.lab.server import survey
from workbench.lab.server.survey import DeadlineReader, FilesystemTimeout


@pytest.fixture
def hanging():
    """Return a look that hangs until the test has ended, or the event is set."""
    answers = threading.Event()
    yield answers
    answers.set()


async def test_a_look_that_hangs_keeps_neither_the_event_loop_nor_who_has_asked_and_names_the_folder(
    hanging, monkeypatch
):
    monkeypatch.setattr(survey, "_PATIENCE", 0.1)

    with pytest.raises(FilesystemTimeout):
        await DeadlineReader(lambda: "/the/folder").read(hanging.wait)


async def test_looks_while_one_hangs_have_no_threads_and_those_that_nobody_awaits_any_more_are_left_out(
    hanging, threads, monkeypatch
):
    monkeypatch.setattr(survey, "_PATIENCE", 0.1)
    its, late = DeadlineReader(lambda: "it"), []

    told = await asyncio.gather(
        its.read(hanging.wait), *(its.read(late.append, i) for i in range(50)), return_exceptions=True
    )
    assert {type(each) for each in told} == {FilesystemTimeout}
    assert len(threads()) == 1

    monkeypatch.undo()
    hanging.set()
    assert await its.read(sorted, [2, 1], reverse=True) == [2, 1]
    assert late == []
    assert len(threads()) == 1


async def test_what_the_system_says_is_raised_as_it_is():
    def fail():
        raise TimeoutError("the system gives it up")

    for _ in range(2):
        with raises(TimeoutError, args=("the system gives it up",)) as failed:
            await DeadlineReader(lambda: "it").read(fail)
        assert type(failed.value) is TimeoutError


async def test_who_leaves_does_not_keep_the_others():
    its, answers = DeadlineReader(lambda: "it"), threading.Event()
    leaving, staying = asyncio.create_task(its.read(answers.wait)), asyncio.create_task(its.read(str, 3))
    await asyncio.sleep(0)

    leaving.cancel()
    answers.set()

    assert await staying == "3"


async def test_its_thread_ends_when_nobody_has_it_any_more(threads):
    its = DeadlineReader(lambda: "it")
    assert await its.read(str, 3) == "3"
    assert len(threads()) == 1

    del its

    await asyncio.to_thread(until, "it has ended", lambda: not threads())
