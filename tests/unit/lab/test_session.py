"""What one who looks has: pages that are turned, hidden and put away."""

from __future__ import annotations

import dataclasses
import time

import pytest
from bokeh.document import Document
from panel.io.state import set_curdoc, state
from panel.pane import HTML
from support.drawn import Answering, text

from benchmarks.simulated import Simulated
from workbench.lab.dashboard.session import PAGE_CLASSES, Session
from workbench.lab.dashboard.store import DataStore
from workbench.lab.dashboard.view_state import ViewState


@pytest.fixture
def view_state():
    """Give what one who looks has chosen."""
    return ViewState()


@pytest.fixture
def later():
    """Give the seconds that have passed since the first metrics, in a list of one number."""
    return [0.0]


@pytest.fixture
async def store(later):
    """Give the data of a cluster that has reported something."""
    store = DataStore(Simulated(4, 1, history=20, clock=lambda: time.time() + later[0]))
    await store.refresh()
    return store


@pytest.fixture
def document():
    """Give the document of a browser."""
    return Document()


@pytest.fixture
async def session(store, view_state, document):
    """Give the session of one who looks."""
    with set_curdoc(document):
        session = Session(store, view_state, "../dask/")
    yield session
    session.close()


def arrive(session):
    """Confirm all sent messages, as the browser does, and the messages that are sent thereupon."""
    sent, has = session.backpressure.view
    while not session.backpressure.is_ready:
        has.value = sent.value


def in_sight(session):
    return [page.visible for page in session.main]


async def test_pages_that_one_has_turned_away_from_are_hidden_and_come_back(session, view_state):
    view_state.page = "cores"
    view_state.page = "communication"
    view_state.measure = "messages"
    before = list(session.main)
    assert in_sight(session) == [False, False, False, True]

    view_state.page = "overview"
    assert in_sight(session) == [True, False, False, False]
    view_state.page = "communication"
    assert in_sight(session) == [False, False, False, True]
    view_state.measure = "bytes"

    assert in_sight(session) == [False, False, True, False]
    assert list(session.main) == before


async def test_dask_draws_only_while_somebody_looks(session, view_state):
    view_state.page = "dask"
    _, dask = session.main
    assert "<iframe src='../dask/'" in text(dask)

    view_state.page = "overview"
    assert "<iframe" not in "".join(pane.object for pane in dask.select(HTML))
    arrive(session)
    view_state.page = "dask"
    assert "<iframe " in text(dask)


async def test_pages_of_other_ranks_are_put_away_and_after_many_the_browser_begins_anew(
    session, store, document, monkeypatch
):
    monkeypatch.setattr("workbench.lab.dashboard.session._HIDDEN_PAGES_KEPT", 3)
    with set_curdoc(document):
        location = state.location
    update = await store.source.ask(0)

    told = []
    for number in (2, 3, 4):
        store.source = Answering(dataclasses.replace(update, layout=dataclasses.replace(update.layout, number=number)))
        await store.refresh()
        session.draw()
        told.append((len(session.main), location.reload))

    assert told == [(1, False), (1, False), (1, True)]


async def test_nothing_is_changed_on_a_page_until_the_browser_tells_that_it_has_the_page(
    session, store, view_state, later, monkeypatch
):
    shown = []
    view_state.page = "cores"
    monkeypatch.setattr(PAGE_CLASSES["cores"], "show", lambda _, moment: shown.append(moment))
    later[0] = 5.0

    await store.refresh()
    session.draw()
    assert shown == []

    arrive(session)
    assert [moment.time for moment in shown] == [store.at(None).time]
    arrive(session)
    session.draw()
    assert len(shown) == 1, "there is nothing new"

    view_state.page = "overview"
    view_state.page = "cores"
    assert len(shown) == 1, "the overview is on its way"
    assert in_sight(session) == [False, True]
    arrive(session)
    assert len(shown) == 2


async def test_a_browser_that_tells_nothing_is_sent_more_after_a_while(session, view_state, monkeypatch):
    view_state.page = "cores"
    assert not session.backpressure.is_ready

    monkeypatch.setattr("workbench.lab.dashboard.session._ANSWER_TIMEOUT_S", 0.0)

    assert session.backpressure.is_ready
    await session.backpressure.wait_ready()
