from __future__ import annotations

import asyncio
import dataclasses
import gc
import io
import weakref

import numpy as np
import pandas as pd
import pytest
from bokeh.document import Document
from panel.io.state import set_curdoc

from workbench.bench.simulated import Simulated
from workbench.dashboard.cards import Cards
from workbench.dashboard.looking import PAGES, Looking
from workbench.dashboard.looks import DARK, LIGHT
from workbench.dashboard.page import Desk
from workbench.dashboard.session import PAGE_CLASSES, Session
from workbench.dashboard.store import DataStore
from workbench.dashboard.training import spread


def known(ranks, nodes, **fields):
    source = Simulated(ranks, nodes, history=60)
    store = DataStore(source)
    update = dataclasses.replace(asyncio.run(source.ask(0)), **fields)
    store._take(update)
    return store


def made(name, moment, **chosen):
    page = PAGE_CLASSES[name](moment, Desk(Looking(**chosen), Cards(LIGHT), lambda *_: None))
    page.show(moment)
    return page


def test_every_page_that_can_be_chosen_is_there():
    assert list(PAGE_CLASSES) == list(PAGES)


@pytest.mark.parametrize("ranks", [1, 4, 100, 512])
@pytest.mark.parametrize("name", PAGES)
def test_every_chart_has_its_numbers_as_a_table(name, ranks):
    page = made(name, known(ranks, -(-ranks // 16)).at(None))

    for chart in page.cards.charts:
        table = pd.read_csv(io.StringIO(page.cards.csv(chart)))
        assert len(table.columns) >= 2
        assert len(table) > 0 or chart == "one-pair-over-time"


@pytest.mark.parametrize("name", PAGES)
def test_every_page_is_drawn_where_ranks_have_told_nothing(name):
    source = Simulated(4, 2, history=60)
    update = asyncio.run(source.ask(0))
    some, none = update.rank.copy(), np.full_like(update.rank, np.nan)
    some[:, 1] = np.nan
    nothing = np.full_like(update.node, np.nan)
    for fields in ({"rank": some}, {"rank": none, "node": nothing, "fits": []}):
        made(name, known(4, 2, **fields).at(None))


def test_numbers_that_are_saved_are_those_that_were_measured():
    moment = known(4, 1).at(None)

    table = pd.read_csv(io.StringIO(made("overview", moment).cards.csv("cpu-of-each-rank")))

    of_rank = table[table["rank"] == 2].sort_values("time")["cpu_percent"]
    assert np.allclose(of_rank, moment.of_ranks("cpu")[:, 2], rtol=1e-5)


def test_the_time_of_a_step_is_what_has_gone_by_in_the_parts_that_ranks_have_spent_it_in():
    moment = known(4, 1).at(None)

    table = pd.read_csv(io.StringIO(made("training", moment).cards.csv("time-of-each-step")))

    fits = [record for record in moment.fits if record["fit"] == moment.fits[-1]["fit"]]
    assert table["step"].tolist() == [record["step"] for record in fits[1:]]
    parts = table[["compute", "mpi", "waiting", "idle"]]
    assert parts.sum(axis=1).to_numpy() == pytest.approx(np.diff([record["time"] for record in fits]), rel=1e-3)


def test_steps_that_were_told_together_share_the_time_till_then():
    assert spread(np.array([1.0, 1.5, 1.5, 1.5, 2.0, 2.003])).tolist() == pytest.approx(
        [1.0, 1 + 1 / 6, 1 + 1 / 3, 1.5, 1.7515, 2.003]
    )
    assert spread(np.array([])).tolist() == []


def test_an_address_tells_again_what_was_looked_at_and_no_more():
    looking = Looking(page="communication", kind="mpi", pair="3-5", until=12.5)

    assert looking.query == "?kind=mpi&page=communication&pair=3-5&until=12.5"
    assert Looking().query == ""
    again = Looking.at({"page": "communication", "kind": "mpi", "pair": "3-5", "until": "12.5"})
    assert again.query == looking.query


@pytest.mark.parametrize(
    "query",
    [{"page": "nowhere"}, {"pair": "3-"}, {"pair": "1-2<b>"}, {"until": "soon"}, {"minutes": "7"}, {"who": "knows"}],
)
def test_what_an_address_tells_that_cannot_be_is_passed_over(query):
    assert Looking.at(query).query == ""


def test_names_that_others_have_given_are_shown_as_they_are():
    source = Simulated(2, 1, history=20)
    layout = dataclasses.replace(source.layout, nodes=("<script>alert(1)</script>",))
    state = {"state": "<b>ready</b>", "message": "<img>", "ranks": 2, "present": 2, "ends": None}
    moment = known(2, 1, layout=layout, state=state).at(None)

    for name in ("overview", "cores", "waiting"):
        texts = [its.object for its in made(name, moment).view.select(lambda its: hasattr(its, "object"))]
        markup = " ".join(text for text in texts if isinstance(text, str))
        assert "<script>" not in markup
        assert "<img>" not in markup
        assert "<b>ready" not in markup


async def test_a_session_that_is_closed_leaves_nothing_behind():
    store = DataStore(Simulated(4, 1, history=20))
    await store.refresh()
    with set_curdoc(Document()):
        session = Session(store, Looking(), None)
    page, asking = weakref.ref(session._page), store._asking
    assert page() is not None

    session.close()
    del session
    with pytest.raises(asyncio.CancelledError):
        await asking
    gc.collect()

    assert page() is None


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_a_palette_goes_from_nothing_to_much_and_has_a_colour_for_what_is_missing(theme):
    assert len(theme.palette) == 256
    assert (theme.palette[0], theme.palette[254], theme.palette[255]) == (theme.ramp[0], theme.ramp[-1], theme.missing)
