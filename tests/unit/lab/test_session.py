"""What one who looks has: pages that are turned, hidden and put away."""

from __future__ import annotations

import dataclasses
import time
from types import SimpleNamespace

import pytest
from bokeh.document import Document
from panel.io.state import set_curdoc

from benchmarks.simulated import Simulated
from workbench.lab.dashboard.session import Session
from workbench.lab.dashboard.store import DataStore
from workbench.lab.dashboard.view_state import ViewState


@pytest.fixture
async def session():
    """Give a session of one who looks at a cluster that has told something."""
    store = DataStore(Simulated(4, 1, history=20))
    await store.refresh()
    with set_curdoc(Document()):
        session = Session(store, ViewState(), "../dask/")
        session._location = SimpleNamespace(search="", reload=False)
        yield session
    session.close()


def arrive(session):
    """Tell, as the browser does, that it has all that it was sent, and what was sent thereupon."""
    while not session.backpressure.is_ready:
        session.backpressure._has.value = session.backpressure._sent.value


def in_sight(session):
    return [page.visible for page in session.main]


async def test_pages_that_one_has_turned_away_from_are_hidden_and_come_back(session):
    session._view_state.page = "cores"
    session._view_state.page = "communication"
    session._view_state.measure = "messages"
    before = list(session.main)
    assert in_sight(session) == [False, False, False, True]

    session._view_state.page = "overview"
    assert in_sight(session) == [True, False, False, False]
    session._view_state.page = "communication"
    assert in_sight(session) == [False, False, False, True]
    session._view_state.measure = "bytes"

    assert in_sight(session) == [False, False, True, False]
    assert list(session.main) == before


async def test_dask_draws_only_while_somebody_looks(session):
    session._view_state.page = "dask"
    frame = session._page._frame
    assert "<iframe src='../dask/'" in frame.object

    session._view_state.page = "overview"
    assert frame.object == ""
    arrive(session)
    session._view_state.page = "dask"
    assert "<iframe " in frame.object


async def test_pages_of_other_ranks_are_put_away_and_after_many_the_browser_begins_anew(session, monkeypatch):
    monkeypatch.setattr("workbench.lab.dashboard.session._HIDDEN_PAGES_KEPT", 3)
    store = session._store
    update = await store.source.ask(0)

    told = []
    for number in (2, 3, 4):
        store._take(dataclasses.replace(update, layout=dataclasses.replace(update.layout, number=number)))
        session._draw()
        told.append((len(session.main), session._location.reload))

    assert told == [(1, False), (1, False), (1, True)]


async def test_nothing_is_changed_on_a_page_until_the_browser_tells_that_it_has_the_page(session, monkeypatch):
    shown = []
    session._view_state.page = "cores"
    monkeypatch.setattr(session._page, "show", shown.append)
    monkeypatch.setattr(session._store.source, "_clock", lambda: time.time() + 5)

    await session._store.refresh()
    session._draw()
    assert shown == []

    arrive(session)
    assert [moment.time for moment in shown] == [session._store.at(None).time]
    arrive(session)
    session._draw()
    assert len(shown) == 1, "there is nothing new"

    session._view_state.page = "overview"
    session._view_state.page = "cores"
    assert len(shown) == 1, "the overview is on its way"
    assert in_sight(session) == [False, True]
    arrive(session)
    assert len(shown) == 2


async def test_a_browser_that_tells_nothing_is_sent_more_after_a_while(session, monkeypatch):
    session._view_state.page = "cores"
    assert not session.backpressure.is_ready

    monkeypatch.setattr("workbench.lab.dashboard.session._ANSWER_TIMEOUT_S", 0.0)

    assert session.backpressure.is_ready
    await session.backpressure.wait_ready()
