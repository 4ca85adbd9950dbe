from __future__ import annotations

import asyncio
import dataclasses
import gc
import io
import weakref
from html import escape

import numpy as np
import pandas as pd
import pytest
from bokeh.core.validation.check import check_integrity
from bokeh.document import Document
from bokeh.events import Tap
from bokeh.models import Axis, ColorBar, HoverTool, NoOverlap, Plot
from bokeh.plotting import figure
from panel.io.state import set_curdoc
from panel.pane import Bokeh
from panel.widgets import Select
from support import drawn
from support.drawn import chart, data, saved, text

from benchmarks.simulated import Simulated
from workbench.lab.dashboard.cards import CardFactory
from workbench.lab.dashboard.charts import WORDS, HeatMap, local
from workbench.lab.dashboard.controls import Controls
from workbench.lab.dashboard.overview import shared_cores
from workbench.lab.dashboard.page import PageContext
from workbench.lab.dashboard.session import PAGE_CLASSES, Session
from workbench.lab.dashboard.snapshot import SHARES
from workbench.lab.dashboard.store import DataStore
from workbench.lab.dashboard.theme import DARK, FIRST, LIGHT, MISSING, NOTHING, TOP, contrast
from workbench.lab.dashboard.training import spread
from workbench.lab.dashboard.view_state import PAGES, ViewState
from workbench.metrics.schema import NODE, RANK, TICK
from workbench.metrics.store import Store
from workbench.metrics.update import LOST, NO_SAMPLE, RankActivity, RankPlace, Update


def known(ranks, nodes, **fields):
    update = asyncio.run(Simulated(ranks, nodes, history=60).ask(0))
    return drawn.known(dataclasses.replace(update, **fields))


def made(name, moment, **chosen):
    page = PAGE_CLASSES[name](moment, PageContext(ViewState(**chosen), CardFactory(LIGHT), lambda *_: None))
    page.show(moment)
    return page


def test_every_page_that_can_be_chosen_is_there():
    assert list(PAGE_CLASSES) == list(PAGES)


@pytest.mark.parametrize("ranks", [1, 100, 512])
@pytest.mark.parametrize("name", PAGES)
def test_every_chart_has_its_numbers_as_a_table(name, ranks):
    page = made(name, known(ranks, -(-ranks // 16)).at(None))

    assert check_integrity(page.view.get_root(Document()).references()).error == []
    for title in page.cards.tables:
        table = pd.read_csv(io.StringIO(page.cards.csv(title)))
        assert len(table.columns) >= 2
        assert len(table) > 0 or title == "one-pair-over-time"


@pytest.mark.parametrize("name", PAGES)
def test_labels_of_a_horizontal_axis_never_overlap(name):
    models = made(name, known(100, 32).at(None)).view.get_root(Document()).references()

    axes = [axis for model in models if isinstance(model, Plot) for axis in model.below if isinstance(axis, Axis)]
    assert {type(axis.major_label_policy) for axis in axes} == ({NoOverlap} if axes else set())
    assert bool(axes) == (name != "dask")


@pytest.mark.parametrize("name", PAGES)
def test_every_page_is_drawn_where_ranks_have_told_nothing(name):
    source = Simulated(4, 2, history=60)
    update = asyncio.run(source.ask(0))
    some, none = update.rank.copy(), np.full_like(update.rank, np.nan)
    some[:, 1] = np.nan
    nothing = np.full_like(update.node, np.nan)
    for fields in ({"rank": some}, {"rank": none, "node": nothing, "fits": []}):
        made(name, known(4, 2, **fields).at(None))


def test_gpus_have_a_card_only_if_a_rank_has_one():
    moment = known(4, 1).at(None)
    assert "GPUs" not in text(made("cores", moment).view)
    some = asyncio.run(Simulated(4, 1, history=60).ask(0)).rank.copy()
    for name, value in (("gpu", 25.0), ("gpu_memory", 2.0**30), ("gpu_memory_total", 2.0**34)):
        some[:, 2, RANK.index(name)] = value

    page = made("cores", known(4, 1, rank=some).at(None))

    gpus = text(page.view).partition("GPUs")[2]
    assert "Rank 2" in gpus
    assert "25 %" in gpus
    assert "Rank 1" not in gpus


@pytest.mark.parametrize("cores", [2, 80])  # a row for each core, or for each node
def test_cores_of_a_node_without_a_sample_are_unknown_and_not_idle(cores):
    update = asyncio.run(Simulated(4, 2, history=60, cores=cores).ask(0))
    core, node = update.core.copy(), update.node.copy()
    core[-20:, cores:] = NO_SAMPLE
    node[-20:, 1] = np.nan
    view = made("cores", known(4, 2, layout=update.layout, core=core, node=node).at(None)).view

    now = data(chart(view, "Every core now"))["image"][0]
    past = data(chart(view, f"CPU of each {'core' if cores == 2 else 'node'} over time"))["image"][0]
    assert (now == MISSING).all(axis=1).tolist() == [False, True]
    assert (past[:, -1] == MISSING).tolist() == np.repeat([False, True], len(past) // 2).tolist()
    assert (past[:, 0] != MISSING).all()
    assert "style='width:0%'></i></span> ?" in text(view).partition("node002")[2]


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
    view_state = ViewState(page="communication", kind="mpi", pair="3,0", until=12.5)

    assert view_state.query == "?kind=mpi&page=communication&pair=3,0&until=12.5"
    assert ViewState().query == ""
    again = ViewState.at({"page": "communication", "kind": "mpi", "pair": "3,0", "until": "12.5"})
    assert again.query == view_state.query


@pytest.mark.parametrize(
    "query",
    [
        {"page": "nowhere"},
        {"until": "soon"},
        {"minutes": "7"},
        {"who": "knows"},
        {"until": "nan"},
        {"until": "-1"},
        {"until": "inf"},
        {"theme": "pink"},
    ],
)
def test_what_an_address_tells_that_cannot_be_is_passed_over(query):
    assert ViewState.at(query).query == ""


def test_the_theme_stays_in_the_address_of_who_has_asked_for_it():
    assert ViewState.at({"theme": "light"}).query == "?theme=light"
    assert ViewState.at({"theme": "dark"}).query == "?theme=dark"


def test_ranks_in_one_operation_have_one_bar_in_the_color_of_those_that_wait():
    moment = known(4, 1).at(None)
    recent, long = RankActivity("f", "Allreduce", moment.valid_at), RankActivity("f", "Allreduce", moment.valid_at - 60)
    lost = RankActivity(LOST, None, moment.valid_at - 12)
    page = made("waiting", known(4, 1, now=(recent, long, recent, lost)).at(None))

    bars = data(chart(page.view, "Current operations"))
    assert bars["name"] == ["lost", "Allreduce"]
    assert bars["ranks"].tolist() == [1, 3]
    assert bars["color"] == [LIGHT.bad, LIGHT.shares[2]]
    assert "Rank 3 was lost; results on it are lost." in text(page.view)


def test_charts_of_one_name_have_tables_of_their_own():
    cards = CardFactory(LIGHT)
    for number in range(3):
        cards.chart("A loss", figure(), lambda number=number: pd.DataFrame({"is": [number]}))

    assert [cards.csv(name) for name in cards.tables] == ["is\n0\n", "is\n1\n", "is\n2\n"]


def choice(page):
    """Return the choice of a fit."""
    (select,) = page.view.select(Select)
    return select


def reported(*fits_and_times):
    return [{"fit": fit, "name": fit, "time": time, "step": 1, "loss": 0.5} for fit, time in fits_and_times]


def test_the_fit_that_was_begun_last_is_shown_until_only_another_one_reports():
    both = reported(("a", 1.0), ("b", 2.0), ("a", 3.0))
    page = made("training", known(2, 1, fits=both).at(None))
    assert list(choice(page).options.values()) == ["", "b", "a"]
    assert "<b>b</b>" in text(page.view)

    page = made("training", known(2, 1, fits=both + reported(("a", 60.0))).at(None))
    assert list(choice(page).options.values()) == ["", "b", "a"]
    assert "<b>a</b>" in text(page.view)


def test_the_curves_of_many_ranks_can_be_chosen_in_whatever_order_they_report():
    ranks = [f"training, rank {rank}" for rank in range(64)]
    orders = [ranks, ranks[::-1], ranks[32:] + ranks[:32]]
    options = []
    for number in range(3):
        fits = reported(*((fit, float(step)) for step, order in enumerate(orders[: number + 1]) for fit in order))
        page = made("training", known(64, 1, fits=fits).at(None), fit=ranks[3])
        options.append(choice(page).options)
        assert f"<b>{ranks[3]}</b>" in text(page.view)
    assert options[0] == options[1] == options[2]
    assert set(options[0].values()) == {"", *ranks}


def test_a_fit_that_was_chosen_is_offered_although_many_were_begun_since():
    fits = reported(*((f"fit {number}", float(number)) for number in range(150)))
    page = made("training", known(2, 1, fits=fits).at(None), fit="fit 7")

    assert list(choice(page).options.values()) == ["", *(f"fit {number}" for number in (*range(149, 49, -1), 7))]


def test_fits_that_were_begun_in_one_second_are_all_offered_the_newest_first():
    def record(fit, time):
        return {"fit": fit, "name": "KMeans", "time": time, "step": 1, "loss": 0.5}

    fits = [record(str(number), 100 + number / 10) for number in range(5)]
    page = made("training", known(2, 1, fits=fits).at(None), fit="4")

    assert list(choice(page).options.values()) == ["", "4", "3", "2", "1", "0"]
    labels = list(choice(page).options)[1:]
    assert [label.partition(" #")[2] for label in labels] == ["5", "4", "3", "2", ""]
    assert choice(page).value == "4"


def picture(page):
    """Return begin and seconds of the picture of CPU over time, and its codes."""
    its = data(chart(page.view, "CPU of each rank"))
    return its["x"][0] / 1000, its["dw"][0] / 1000, its["image"][0]


def test_what_was_before_the_window_is_not_drawn_into_it_after_a_laptop_has_slept():
    times = known(4, 1).at(None).times.copy()
    times[:-20] -= 7200
    page = made("overview", known(4, 1, times=times).at(None))

    begin, seconds, codes = picture(page)

    assert (seconds, codes.shape) == (pytest.approx(10.0, abs=0.01), (4, 20))
    assert begin + seconds == pytest.approx(local(times[-1]) / 1000, abs=0.01)


def test_a_time_of_which_nothing_is_known_is_left_out_of_a_picture_over_time():
    times = known(4, 1).at(None).times.copy()
    times[:-20] -= 30
    page = made("overview", known(4, 1, times=times).at(None))

    _, seconds, codes = picture(page)

    assert seconds == pytest.approx(TICK * codes.shape[1], abs=0.01)
    unknown = np.flatnonzero((codes == MISSING).all(axis=0))
    assert unknown.tolist() == list(range(codes.shape[1] - 80, codes.shape[1] - 20))


def test_the_walltime_that_is_left_is_that_of_the_moment_which_is_shown():
    times = known(2, 1).at(None).times - 1e6
    page = made("overview", known(2, 1, times=times, state={"ends": times[-1] + 7200}).at(None))

    assert "<b>2 h</b> left, until" in text(page.view)


def test_numbers_of_a_pair_are_saved_in_the_units_of_all_others():
    moment, asked = known(4, 1).at(None), []
    page = PAGE_CLASSES["communication"](
        moment, PageContext(ViewState(), CardFactory(LIGHT), lambda *its: asked.append(its))
    )
    page.show(moment)
    rates = np.ones((len(moment.times), 2))
    asked[0][2](moment.times, rates)

    table = pd.read_csv(io.StringIO(page.cards.csv("one-pair-over-time")))

    assert list(table) == ["time", "dask_bytes_per_second", "mpi_bytes_per_second"]
    assert np.allclose(table["time"], moment.times, rtol=0, atol=0.01)


def test_the_history_of_a_pair_that_was_chosen_before_is_not_shown():
    moment, asked = known(4, 1).at(None), []
    view_state = ViewState(pair="0,1")
    context = PageContext(
        view_state, CardFactory(LIGHT), lambda source, target, take: asked.append((source, target, take))
    )
    page = PAGE_CLASSES["communication"](moment, context)
    page.show(moment)
    view_state.pair = "2,3"
    page.show(moment)
    view_state.minutes = 5
    page.show(moment)
    page.show(moment)

    assert [each[:2] for each in asked] == [(0, 1), (2, 3), (2, 3)]
    for *_, take in asked[:2]:
        take(moment.times, np.ones((len(moment.times), 2)))
        assert len(data(chart(page.view, "One pair over time"))["time"]) == 0
    asked[2][2](moment.times, np.ones((len(moment.times), 2)))
    assert len(data(chart(page.view, "One pair over time"))["time"]) > 0


def test_a_pair_is_named_by_its_ranks_and_stays_the_same_when_others_come():
    ranks = [RankPlace(0, 0), RankPlace(1, 0), RankPlace(3, 0), RankPlace(4, 0)]
    layout = dataclasses.replace(Simulated(4, 1).layout, ranks=tuple(ranks))
    moment, asked = known(4, 1, layout=layout).at(None), []
    context = PageContext(ViewState(pair="4,0"), CardFactory(LIGHT), lambda *its: asked.append(its[:2]))
    page = PAGE_CLASSES["communication"](moment, context)
    page.show(moment)

    assert asked == [(3, 0)]
    assert "From rank 4 to rank 0" in text(page.view)
    matrix = chart(page.view, "Who sends to whom, by rank")
    document = Document()
    document.add_root(page.view.get_root(document))
    document.callbacks.trigger_event(Tap(matrix, x=2.2, y=0.9))
    assert context.view_state.pair == "1,3"


@pytest.mark.parametrize("pair", ["0-1", "0,9", "0,1,2", ",", "<b>,0"])
def test_a_pair_that_is_not_there_is_told_and_the_busiest_is_shown(pair):
    page = made("communication", known(4, 1).at(None), pair=pair)

    told = text(page.view)
    assert f"There is no pair {escape(pair)}: pairs of ranks have names like 0,3." in told
    assert "the busiest pair" in told


@pytest.mark.parametrize("name", PAGES)
def test_every_page_can_be_opened_before_the_first_rank_has_joined(name):
    head = Store()
    head.tick()

    made(name, drawn.known(head.update()).at(None), pair="0,1")


async def test_the_numbers_of_a_moment_that_is_paused_stay():
    store = DataStore(Simulated(4, 1, history=60))
    await store.refresh()
    view_state = ViewState()
    with set_curdoc(Document()):
        session = Session(store, view_state, None)
    view_state.until = store.at(None).time
    cpu = chart(session.main, "CPU of each rank")
    before = saved(cpu)

    store.at(None).rank[:] = 0

    assert saved(cpu) == before
    session.close()


def test_where_there_are_no_times_no_moment_is_told_and_none_can_be_paused_at():
    source = Simulated(2, 1, history=20)
    update = asyncio.run(source.ask(0))
    nothing = {name: getattr(update, name)[:0] for name in ("times", "rank", "node", "core")}
    moment, view_state = known(2, 1, **nothing).at(None), ViewState()
    controls = Controls(view_state, lambda: moment)

    controls.show(moment, moment)
    (live,) = (each for each in controls.choices if "Live" in getattr(each, "options", ()))
    live.value = False

    assert (text(controls.choices), live.value, view_state.until) == ("", True, None)


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


async def test_a_session_that_fails_leaves_nobody_who_listens(monkeypatch):
    store = DataStore(Simulated(4, 1, history=20))
    await store.refresh()
    monkeypatch.setattr(PAGE_CLASSES["overview"], "build", lambda _: {}["page"])

    with set_curdoc(Document()), pytest.raises(KeyError):
        Session(store, ViewState(), None)

    assert asyncio.all_tasks() == {asyncio.current_task()}, "nothing polls"


async def test_who_comes_when_nobody_has_looked_for_a_while_is_not_told_that_the_head_is_silent():
    passed = [0.0]
    store = DataStore(Simulated(4, 1, history=20), now=lambda: passed[0])
    leave = store.listen(lambda: None)
    await store.refresh()
    leave()
    passed[0] = 600.0

    with set_curdoc(Document()):
        session = Session(store, ViewState(), None)

    assert session.trouble.object == ""
    session.close()


async def test_a_session_that_is_closed_leaves_nothing_behind():
    store = DataStore(Simulated(4, 1, history=20))
    await store.refresh()
    with set_curdoc(Document()):
        session = Session(store, ViewState(), None)
    page = weakref.ref(session.main[0])
    (asking,) = asyncio.all_tasks() - {asyncio.current_task()}
    assert page() is not None

    session.close()
    del session
    with pytest.raises(asyncio.CancelledError):
        await asking
    gc.collect()

    assert page() is None


def lightness_and_hue(color):
    """Return CIE L*, a* and b* of a color."""
    parts = np.array([int(color[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    xyz = linear @ np.array([[0.4124, 0.2126, 0.0193], [0.3576, 0.7152, 0.1192], [0.1805, 0.0722, 0.9505]])
    x, y, z = np.cbrt(xyz / np.array([0.9505, 1.0, 1.089]))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_a_palette_goes_from_little_to_much_and_has_colors_apart_for_nothing_and_for_what_is_missing(theme):
    assert len(theme.palette) == 256
    assert (theme.palette[NOTHING], theme.palette[MISSING]) == (theme.nothing, theme.missing)
    ramp = theme.palette[FIRST:MISSING]
    assert (ramp[0], ramp[-1]) == (theme.ramp[0], theme.ramp[-1])
    for apart in (theme.nothing, theme.missing):
        assert min(np.linalg.norm(lightness_and_hue(apart) - lightness_and_hue(each)) for each in ramp) > 15


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_text_and_lines_and_areas_have_the_contrast_that_the_accessibility_guidelines_ask_for(theme):
    assert (round(contrast("#ffffff", "#000000")), contrast("#777777", "#777777")) == (21, 1)
    for ink in (theme.text, theme.muted, theme.bad):
        assert min(contrast(ink, theme.card), contrast(ink, theme.page)) >= 4.5
    assert min(contrast(ink, color) for ink, color in zip(theme.inks, theme.palette, strict=True)) >= 4.5
    # the idle part has a border in the color of muted text
    assert min(contrast(area, theme.card) for area in (*theme.shares[:-1], *theme.kinds)) >= 3


def traffic(ranks, sent):
    """Return what is known of ranks of which these pairs have sent so many bytes."""
    none = asyncio.run(Simulated(ranks, 1, history=60).ask(0)).traffic
    numbers = np.zeros_like(none.bytes)
    for pair, number in sent.items():
        numbers[(1, *pair)] = number
    return dataclasses.replace(none, bytes=numbers, messages=(numbers > 0).astype(numbers.dtype))


def test_a_pair_that_sent_nothing_has_a_color_of_its_own_and_the_scale_says_what_it_is():
    sent = {(0, 1): 1 << 20, (1, 0): 1 << 30}
    page = made("communication", known(2, 1, traffic=traffic(2, sent)).at(None), span="total", kind="mpi")
    matrix = chart(page.view, "Who sends to whom, by rank")
    bar = matrix.select_one(ColorBar)

    assert data(matrix)["image"][0].tolist() == [[NOTHING, FIRST], [TOP, NOTHING]]
    assert bar.title == "log scale"
    assert sorted(bar.major_label_overrides.values()) == ["0 B", "1 GiB", "1 MiB", "32 MiB"]
    assert bar.ticker.ticks == sorted(bar.major_label_overrides)
    mapper = bar.color_mapper
    at = {label: number for number, label in bar.major_label_overrides.items()}
    place = (at["0 B"] - mapper.low) / (mapper.high - mapper.low)
    assert mapper.palette[int(place * len(mapper.palette))] == LIGHT.nothing


def test_the_tooltip_of_a_pair_has_its_number_and_not_that_of_its_color():
    sent = {(0, 1): 1_000_000, (1, 0): 5}
    page = made("communication", known(2, 1, traffic=traffic(2, sent)).at(None), span="total", kind="mpi")
    matrix = chart(page.view, "Who sends to whom, by rank")

    assert data(matrix)["number"][0].tolist() == [[0, 1_000_000], [5, 0]]
    (tooltip,) = matrix.select(HoverTool)
    assert tooltip.tooltips[-1] == ("bytes", "@number{custom}")


def test_cells_of_up_to_eight_ranks_have_their_numbers_in_an_ink_that_can_be_read():
    def written(moment):
        page = made("communication", moment, span="total", kind="mpi")
        _, *texts = chart(page.view, "Who sends to whom, by rank").renderers
        return [each.data_source.data for each in texts]

    (cells,) = written(known(2, 1, traffic=traffic(2, {(0, 1): 1 << 20})).at(None))
    assert cells["text"] == ["0 B", "1 MiB", "0 B", "0 B"]
    assert cells["ink"] == [LIGHT.inks[code] for code in (NOTHING, TOP, NOTHING, NOTHING)]
    assert [len(written(known(ranks, 1).at(None))) for ranks in (8, 9)] == [1, 0]


def test_charts_below_each_other_have_their_moments_at_the_same_place():
    page = made("communication", known(4, 1).at(None))

    borders = {chart(page.view, title).min_border_left for title in ("One pair over time", "Sent by all ranks")}
    assert len(borders) == 1
    assert borders.pop() >= 60


def test_a_rate_is_a_step_since_it_holds_for_the_whole_time_before_it():
    moment, asked = known(4, 1).at(None), []
    context = PageContext(ViewState(pair="0,1"), CardFactory(LIGHT), lambda *its: asked.append(its))
    page = PAGE_CLASSES["communication"](moment, context)
    page.show(moment)
    ((_, _, take),) = asked

    take(moment.time + np.array([-2, -1, 0]), np.array([[1.0, 0.0], [5.0, 0.0], [7.0, 0.0]]))

    pair = data(chart(page.view, "One pair over time"))
    assert ((pair["time"] - local(moment.time)) / 1000).tolist() == [-2, -2, -1, -1, 0]
    assert pair["dask"].tolist() == [1, 5, 5, 7, 7]
    take(np.empty(0), np.empty((0, 2)))
    assert {len(column) for column in data(chart(page.view, "One pair over time")).values()} == {0}


def test_tooltips_of_a_training_format_numbers_like_the_axes():
    record = {"fit": "1", "name": "mine", "time": 1.0, "step": 1, "learning_rate": 3e-7}
    page = made("training", known(2, 1, fits=[record]).at(None))

    tools = [tool for pane in page.view.select(Bokeh) for tool in pane.object.select(HoverTool)]
    formats = {column: formatter.code for tool in tools for column, formatter in tool.formatters.items()}
    assert WORDS["number"] in formats.pop("@{learning_rate}")
    assert formats.keys() == {f"@{share}" for share in SHARES}
    assert all(WORDS["seconds"] in code for code in formats.values())


def test_the_chart_of_message_sizes_names_both_of_its_axes():
    shown = chart(made("communication", known(4, 1).at(None)).view, "Message sizes")

    assert [axis.axis_label for axis in shown.axis] == ["minimum bytes of a message", "messages"]


def test_bars_have_borders_where_two_parts_or_a_part_and_the_card_are_hard_to_tell_apart():
    page = made("overview", known(4, 1).at(None))

    borders = [bar.glyph.line_color for bar in chart(page.view, "Where time goes").renderers]
    assert borders == [LIGHT.card] * 3 + [LIGHT.muted]
    assert contrast(LIGHT.muted, LIGHT.card) >= 3


READY = {"state": "ready", "ranks": 2, "present": 2, "ends": None, "message": "the world is ready"}


def test_the_cluster_has_as_many_tiles_with_an_end_as_without_and_its_state_before_them():
    summaries = []
    for ends in (None, 1.9e9):
        summary = text(made("overview", known(2, 1, state=READY | {"ends": ends}).at(None)).view)
        assert summary.count("class=tile>") == 6  # fills two, three and six columns
        assert summary.index("<b>Ready</b>") < summary.index("the world is ready") < summary.index("class=tile>")
        summaries.append(summary)

    assert ["left, until" in summary for summary in summaries] == [False, True]


@pytest.mark.parametrize(("state", "kind"), [("ready", "good"), ("starting", ""), ("degraded", "bad")])
def test_the_dot_beside_a_state_has_the_color_of_its_kind(state, kind):
    summary = text(made("overview", known(2, 1, state=READY | {"state": state}).at(None)).view)

    assert f"<span class='{kind}'><span class=dot>" in summary
    assert min(contrast(color, theme.card) for theme in (LIGHT, DARK) for color in (theme.good, theme.bad)) >= 3


def test_ranks_that_are_alike_take_one_line_and_a_rank_that_is_not_takes_the_same():
    alike = asyncio.run(Simulated(4, 1, history=60).ask(0)).rank.copy()
    alike[:] = alike[:, :1]
    other = alike.copy()
    other[:, 2, RANK.index("memory")] *= 9
    now = (RankActivity("", None, 0.0),) * 4

    lines = [text(made("overview", known(4, 1, rank=rank, now=now).at(None)).view) for rank in (alike, other)]

    assert "<dt>Worth a look</dt><dd>No rank stands out.</dd>" in lines[0]
    assert "<dt>Worth a look</dt><dd><b>Rank 2</b> has " in lines[1]
    assert [line.count("<dd>") for line in lines] == [1, 1]


def test_of_a_full_node_the_largest_rank_is_named():
    update = asyncio.run(Simulated(4, 2, history=60).ask(0))
    rank, node = update.rank.copy(), update.node.copy()
    rank[:] = rank[:, :1]
    rank[:, 3, RANK.index("memory")] *= 1.2
    node[:, 1, NODE.index("memory")] = 0.95 * node[:, 1, NODE.index("memory_total")]
    now = (RankActivity("", None, 0.0),) * 4

    summary = text(made("overview", known(4, 2, rank=rank, node=node, now=now).at(None)).view)

    assert "<b>Rank 3</b> uses the most memory of node node002, which is 95 % full</dd>" in summary


@pytest.mark.parametrize(
    ("ranks", "nodes", "cores", "said"),
    [
        (4, 1, 2, "4 ranks on 2 cores: 50 % each if all compute"),
        (3, 1, 1, "3 ranks on 1 core: 33 % each if all compute"),
        (6, 2, 2, "3 ranks on 2 cores of node001: 67 % each if all compute"),
        (4, 1, 4, ""),
    ],
)
def test_ranks_that_share_cores_are_told_how_much_each_can_have(ranks, nodes, cores, said):
    update = asyncio.run(Simulated(ranks, nodes, history=60, cores=cores).ask(0))
    moment = known(ranks, nodes, layout=update.layout, core=update.core).at(None)

    assert shared_cores(moment) == said
    summary = text(made("overview", moment).view)
    assert ("<dt>Shared cores</dt>" in summary, said in summary) == (bool(said), True)


@pytest.mark.parametrize(
    ("cpus", "said"),
    [
        ([[0, 1]] * 4, "4 ranks on 2 cores: 50 % each if all compute"),
        ([[0], [0], [0], [1, 2, 3, 4]], "ranks 0-2 on 1 core: 33 % each if all compute"),
        ([[0], [1], [0], [1]], "4 ranks on 2 cores: 50 % each if all compute"),
        ([[0], [1], [0], [2]], "ranks 0, 2 on 1 core: 50 % each if all compute"),
        ([[0], [1], [2], [3]], ""),
    ],
)
def test_ranks_that_may_use_some_cores_of_a_node_share_these(cpus, said):
    head = Store()
    for rank in range(4):
        head.joined(0, rank, {"size": 4, "host": "a", "cores": 8, "cpus": cpus[rank], "start": ""})
    head.tick()

    assert shared_cores(drawn.known(Update.unpack(head.update().pack())).at(None)) == said


def test_a_rank_that_was_lost_takes_no_core():
    update = asyncio.run(Simulated(2, 1, history=60, cores=1).ask(0))
    now = (update.now[0], RankActivity(LOST, None, 0.0))

    assert shared_cores(known(2, 1, layout=update.layout, core=update.core, now=now).at(None)) == ""


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_cells_have_borders_unless_they_are_small_or_moments(theme):
    def heat_map(rows, columns):
        names = [str(row) for row in range(rows)], columns and [str(column) for column in range(columns)]
        return HeatMap(theme, 330, *names, unit="percent", hover_titles=("node", "core", "CPU"))

    cells = heat_map(2, 32).figure
    assert [(grid.visible, grid.level) for grid in cells.grid] == [(True, "overlay")] * 2
    assert (cells.ygrid[0].ticker.ticks, cells.xgrid[0].ticker.ticks[:3]) == ([0.5], [0.5, 1.5, 2.5])
    assert min(contrast(grid.grid_line_color, theme.card) for grid in cells.grid) >= 3
    for rows, columns in ((1, 33), (33, 1), (2, None)):
        assert not any(grid.visible for grid in heat_map(rows, columns).figure.grid)


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_a_heat_map_and_its_scale_have_a_border_since_the_smallest_numbers_are_close_to_the_card(theme):
    heat_map = HeatMap(theme, 330, ["0"], None, unit="percent", hover_titles=("rank", "time", "CPU"))

    for border in (heat_map.figure.outline_line_color, heat_map.figure.select_one(ColorBar).bar_line_color):
        assert contrast(border, theme.card) >= 3


def test_the_choices_about_traffic_are_there_on_its_page_alone():
    view_state = ViewState()
    choices = Controls(view_state, lambda: None).choices
    of_traffic = [choice for choice in choices if "Messages" in getattr(choice, "options", ())]
    (measure,) = of_traffic

    assert not measure.visible
    view_state.page = "communication"
    assert measure.visible
    view_state.page = "cores"
    assert not measure.visible
