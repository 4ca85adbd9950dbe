"""Traffic between ranks or nodes."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from bokeh.events import Tap
from bokeh.models import ColumnDataSource, FactorRange

from workbench.lab.dashboard import cards, charts
from workbench.lab.dashboard.format import percent, short, size, span
from workbench.lab.dashboard.page import Page
from workbench.lab.dashboard.theme import ColorScale
from workbench.metrics.schema import KINDS, OPERATION
from workbench.mpi.counters import OPERATIONS, SIZE_BEGINS

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TITLES = ("Dask", "MPI")
_OPERATIONS_SHOWN = 8
# Draws between two requests for the history of a pair.
_DRAWS_PER_REQUEST = 4


class Communication(Page):
    """The matrix, the history of a pair, the rate over time, message sizes and operations."""

    chosen = ("kind", "measure", "span")

    def build(self) -> Any:
        """Make all cards."""
        view_state, theme, between = self.view_state, self.theme, self.snapshot.between
        by = self.snapshot.update.by
        unit = "bytes" if view_state.measure == "bytes" else "count"
        self._matrix = charts.HeatMap(
            theme,
            502,
            between,
            between,
            unit=unit,
            hover_titles=(f"from {by}", f"to {by}", view_state.measure),
            logarithmic=True,
        )
        if self.cards.live:
            self._matrix.figure.on_event(Tap, self._choose)
        self._matrix.figure.xaxis.axis_label, self._matrix.figure.yaxis.axis_label = f"to {by}", f"from {by}"
        if by == "node":
            self._matrix.figure.xaxis.major_label_orientation = 0.7
        self._rate = ColumnDataSource({"time": [], **{kind: [] for kind in KINDS}})
        self._sent = ColumnDataSource({"time": [], "sent": []})
        self._pair = ColumnDataSource({"time": [], **{kind: [] for kind in KINDS}})
        self._past_of_pair = _by_kind(np.empty(0), np.empty((0, len(KINDS))))
        self._sizes = ColumnDataSource({"bin": [], "name": [], **{kind: [] for kind in KINDS}})
        self._spent = ColumnDataSource({"name": [], "busy": [], "waiting": [], "tooltip": []})
        self._draws = 0
        # The pair and the minutes of the last request.
        self._requested: tuple[tuple[int, int], int] | None = None
        self._busiest: tuple[int, int] | None = None
        self._heading = cards.html()
        rate, pair = self._rate_chart(self._rate), self._rate_chart(self._pair, 205)
        # The rates by kind begin with the first viewer, those of all kinds earlier.
        rate.line("time", "sent", source=self._sent, line_color=theme.muted, line_width=1.5, legend_label="both")
        if not self.cards.live:
            rate.legend[0].items = rate.legend[0].items[-1:]
        self._rate_figure, self._pair_figure = rate, pair
        since = "in the last ten seconds" if view_state.span == "recent" else "since the start"
        kind = {"both": "Dask and MPI", "dask": "Dask", "mpi": "MPI"}[view_state.kind]
        click = " Click a cell for its history." if self.cards.live else ""
        note = f"Sent {view_state.measure} {since}, {kind}, on a logarithmic scale.{click}"
        sizes = "Messages since the start by size"
        spent = "Seconds of all ranks since the start. Operations of mpi4py in lower case pickle objects."
        return cards.column(
            cards.row(
                self.cards.chart(f"Who sends to whom, by {by}", self._matrix.figure, self._matrix_table, note),
                cards.column(
                    self.cards.chart(
                        "One pair over time", pair, self._pair_table, "Bytes per second", above=self._heading
                    ),
                    self.cards.chart("Sent by all ranks", rate, self._rate_table, "Bytes per second"),
                ),
            ),
            cards.row(
                self.cards.chart("Message sizes", self._size_chart(), self._size_table, sizes),
                self.cards.chart("Where time in MPI goes", self._operation_chart(), self._operation_table, spent),
            ),
        )

    def draw(self) -> None:
        """Show the snapshot."""
        snapshot, describe = self.snapshot, size if self.view_state.measure == "bytes" else short
        matrix = self._numbers()
        self._matrix.draw(matrix, ColorScale.logarithms(matrix), describe)
        times, rates = snapshot.rates
        shown = times >= self.span[0]
        self._rate.data = _steps(times[shown], dict(zip(KINDS, rates[shown].T, strict=True)))
        sums = np.nansum(snapshot.of_ranks("sent")[self.ticks], axis=1)
        self._sent.data = _steps(snapshot.times[self.ticks], {"sent": sums})
        for chart in (self._rate_figure, self._pair_figure):
            charts.show_span(chart, *self.span)
        self._draw_sizes()
        self._draw_operations()
        self._heading.object = self._pair_text(matrix)
        if (pair := self._shown_pair(matrix)) is not None:
            self._ask_pair(pair)

    def _ask_pair(self, pair: tuple[int, int]) -> None:
        request = pair, self.view_state.minutes

        def take(times: NDArray[np.float64], rates: NDArray[np.float64]) -> None:
            if request == self._requested:  # the user has chosen no other pair meanwhile
                self._take_pair(times, rates)

        if request != self._requested:
            self._draws, self._requested = 0, request
        if self._draws % _DRAWS_PER_REQUEST == 0:
            self.context.ask_pair(*pair, take)
        self._draws += 1

    def _numbers(self) -> NDArray[np.float64]:
        update = self.snapshot.update
        traffic = update.recent if self.view_state.span == "recent" else update.traffic
        numbers = traffic.bytes if self.view_state.measure == "bytes" else traffic.messages
        if self.view_state.kind == "both":
            return np.asarray(numbers.sum(axis=0))
        return np.asarray(numbers[KINDS.index(self.view_state.kind)])

    def _choose(self, event: Any) -> None:
        if event.x is None or event.y is None:
            return
        source, target, between = round(event.y), round(event.x), self.snapshot.between
        if min(source, target) >= 0 and max(source, target) < len(between):
            self.view_state.pair = f"{between[source]},{between[target]}"

    def _shown_pair(self, matrix: NDArray[np.float64]) -> tuple[int, int] | None:
        """Return the chosen pair, or else the pair that was the busiest when the page was opened."""
        if (cell := self.view_state.cell(self.snapshot.between)) is not None:
            return cell
        if self._busiest is None and matrix.any():
            source, target = np.unravel_index(int(matrix.argmax()), matrix.shape)
            self._busiest = int(source), int(target)
        return self._busiest

    def _pair_text(self, matrix: NDArray[np.float64]) -> str:
        pair, between = self._shown_pair(matrix), self.snapshot.between
        missing = self._missing()
        if pair is None:
            return f"{missing}<p class=note>Nothing has been sent.</p>"
        source, target = pair
        number, noun = matrix[source, target], "rank " if self.snapshot.update.by == "rank" else ""
        sent = size(number) if self.view_state.measure == "bytes" else f"{short(number)} messages"
        click = "; click a cell of the matrix for another" if self.cards.live else ""
        chosen = "" if pair == self.view_state.cell(between) else f" (the busiest pair{click})"
        names = f"<b>From {noun}{escape(between[source])} to {noun}{escape(between[target])}</b>"
        return f"{missing}<p>{names}: {sent}<span class=note>{chosen}</span></p>"

    def _missing(self) -> str:
        """Return an error for an address with a pair that does not exist, or no longer."""
        pair, between, by = self.view_state.pair, self.snapshot.between, self.snapshot.update.by
        if not pair or not between or self.view_state.cell(between) is not None:
            return ""
        example = f"{between[0]},{between[-1]}"
        return f"<p class=bad>There is no pair {escape(pair)}: pairs of {by}s have names like {escape(example)}.</p>"

    def _take_pair(self, times: NDArray[np.float64], rates: NDArray[np.float64]) -> None:
        shown = (times >= self.span[0]) & (times <= self.span[1])
        self._pair.data = _steps(times[shown], dict(zip(KINDS, rates[shown].T, strict=True)))
        self._past_of_pair = _by_kind(times[shown], rates[shown])

    def _rate_chart(self, source: ColumnDataSource, height: int = 180) -> Any:
        chart = charts.plot(self.theme, height)
        charts.over_time(chart)
        chart.varea_stack(
            list(KINDS),
            x="time",
            source=source,
            fill_color=list(self.theme.kinds),
            fill_alpha=0.75,
            legend_label=list(_TITLES),
        )
        charts.legend(chart, self.theme)
        charts.numbers(chart, "bytes")
        return chart

    def _size_chart(self) -> Any:
        chart = charts.plot(self.theme, 280)
        bars = chart.vbar_stack(
            list(KINDS),
            x="bin",
            width=0.85,
            source=self._sizes,
            fill_color=list(self.theme.kinds),
            line_color=self.theme.card,
            legend_label=list(_TITLES),
        )
        charts.legend(chart, self.theme)
        charts.numbers(chart, "count")
        charts.name_ticks(chart.xaxis[0], [size(begin) for begin in SIZE_BEGINS])
        chart.xaxis.axis_label, chart.yaxis.axis_label = "minimum bytes of a message", "messages"
        tooltips = [
            ("from", "@name"),
            *((title, f"@{kind}{{0,0}}") for title, kind in zip(_TITLES, KINDS, strict=True)),
        ]
        charts.hover(chart, bars, tooltips)
        return chart

    def _operation_chart(self) -> Any:
        chart = charts.plot(self.theme, 280, y_range=FactorRange())
        self._names = chart.y_range
        colors = [self.theme.shares[1], self.theme.shares[2]]
        bars = chart.hbar_stack(
            ["busy", "waiting"],
            y="name",
            height=0.6,
            source=self._spent,
            fill_color=colors,
            line_color=self.theme.card,
            legend_label=["in the operation", "waiting for others"],
        )
        charts.legend(chart, self.theme)
        chart.xaxis.formatter = charts.tick_format("seconds")
        chart.xaxis.ticker.desired_num_ticks = 4
        chart.x_range.start = 0
        chart.ygrid.visible, chart.xgrid.visible = False, True
        charts.hover(chart, bars, [("", "@name"), ("", "@tooltip")])
        return chart

    def _draw_sizes(self) -> None:
        numbers = self.snapshot.update.sizes
        used = np.flatnonzero(numbers.sum(axis=0) > 0)
        bins = np.arange(used[0], used[-1] + 1) if used.size else np.arange(0)
        names = [size(SIZE_BEGINS[number]) for number in bins]
        self._sizes.data = {"bin": bins, "name": names, **dict(zip(KINDS, numbers[:, bins], strict=True))}

    def _draw_operations(self) -> None:
        table = self._operation_table().head(_OPERATIONS_SHOWN)[::-1]
        names = list(table["operation"])
        if names != list(self._spent.data["name"]):
            self._names.factors = names
        tooltips = [
            f"{short(calls)} calls, {size(sent)}, {span(seconds)}, {percent(waiting / max(seconds, 1e-9))} waiting"
            for calls, sent, seconds, waiting in table[list(OPERATION)].to_numpy(float)
        ]
        self._spent.data = {
            "name": names,
            "busy": (table["seconds"] - table["waiting"]).to_numpy(),
            "waiting": table["waiting"].to_numpy(),
            "tooltip": tooltips,
        }

    def _operation_table(self) -> pd.DataFrame:
        table = pd.DataFrame(self.snapshot.update.operations, columns=list(OPERATION))
        table.insert(0, "operation", list(OPERATIONS))
        return table[table["calls"] > 0].sort_values("seconds", ascending=False)

    def _matrix_table(self) -> pd.DataFrame:
        between, numbers = self.snapshot.between, self._numbers()
        source, target = np.divmod(np.arange(numbers.size), len(between))
        names = np.array(between)
        return pd.DataFrame({"from": names[source], "to": names[target], self.view_state.measure: numbers.ravel()})

    def _rate_table(self) -> pd.DataFrame:
        sent = pd.DataFrame(
            {"time": self.snapshot.times, "bytes_per_second": np.nansum(self.snapshot.of_ranks("sent"), axis=1)}
        )
        return sent.merge(_by_kind(*self.snapshot.rates), how="left", on="time")

    def _pair_table(self) -> pd.DataFrame:
        return self._past_of_pair

    def _size_table(self) -> pd.DataFrame:
        return pd.DataFrame({"from_bytes": SIZE_BEGINS, **dict(zip(KINDS, self.snapshot.update.sizes, strict=True))})


def _steps(times: NDArray[np.float64], rates: dict[str, Any]) -> dict[str, Any]:
    """Return the corners of steps, where each rate lasts from the previous tick to its own.

    Notes
    -----
    Bokeh's areas of steps hang the browser before the first tick.
    """
    corners = {name: np.repeat(rate, 2)[1:] for name, rate in rates.items()}
    return {"time": charts.local(np.repeat(times, 2)[:-1]), **corners}


def _by_kind(times: NDArray[np.float64], rates: NDArray[np.float64]) -> pd.DataFrame:
    return pd.DataFrame({"time": times, **{f"{kind}_bytes_per_second": rates[:, i] for i, kind in enumerate(KINDS)}})
