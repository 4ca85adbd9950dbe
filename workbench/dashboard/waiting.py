"""Who waits for whom."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from bokeh.models import ColumnDataSource, FactorRange, NumeralTickFormatter

from workbench.dashboard import cards, charts, diagnosis
from workbench.dashboard.format import UNKNOWN, percent
from workbench.dashboard.page import Page
from workbench.metrics.update import RankActivity
from workbench.text import count

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Operations in the chart, sentences, and ranks in the table.
_GROUPS, _SENTENCES, _RANKS = 8, 4, 12
_BAND = ("p10", "median", "p90", "most")


class Waiting(Page):
    """What ranks are in, what stands still and because of whom, and how even the work is."""

    def build(self) -> Any:
        """Make all cards."""
        theme = self.theme
        self._words, self._table = cards.html(), cards.html()
        self._groups = ColumnDataSource({"name": [], "ranks": [], "colour": []})
        self._waits, self._works = (ColumnDataSource({"time": [], **{name: [] for name in _BAND}}) for _ in range(2))
        groups = charts.plot(theme, 270, y_range=FactorRange())
        self._names = groups.y_range
        bars = groups.hbar(
            "name", right="ranks", height=0.6, source=self._groups, fill_color="colour", line_color=theme.muted
        )
        groups.x_range.start = 0
        groups.xaxis.ticker.min_interval = 1
        groups.xaxis.formatter = NumeralTickFormatter(format="0")
        groups.ygrid.visible, groups.xgrid.visible = False, True
        charts.hover(groups, [bars], [("", "@name"), ("ranks", "@ranks")])
        self._bands = [self._band(self._waits, theme.shares[2]), self._band(self._works, theme.shares[0])]
        made = self.cards
        waits = "Part of the time: the median rank, eight of ten ranks, and the one that waits most"
        works = "Part of the time: the wider the band, the less even the work"
        return cards.column(
            cards.row(
                made.text("Does anything stand still?", self._words),
                made.chart("What ranks are in", groups, self._group_table, "Ranks by the operation in progress"),
            ),
            cards.row(
                made.chart("Waiting for others", self._bands[0], lambda: self._band_table("waiting"), waits),
                made.chart("Computing", self._bands[1], lambda: self._band_table("compute"), works),
            ),
            made.text("Stragglers", self._table, "Ranks that compute longest while others wait"),
        )

    def draw(self) -> None:
        """Show the moment."""
        self._words.object = self._diagnosis()
        table = self._group_table()[::-1].tail(_GROUPS)
        names = list(table["doing"])
        if names != self._names.factors:
            self._names.factors = names
        self._groups.data = {"name": names, "ranks": table["ranks"].to_numpy(), "colour": table["colour"].to_list()}
        for source, field in ((self._waits, "waiting"), (self._works, "compute")):
            its = self._band_table(field)
            source.data = {
                "time": charts.local(its["time"].to_numpy()),
                **{name: its[name].to_numpy() for name in _BAND},
            }
        for made in self._bands:
            charts.show_span(made, *self.span)
        self._table.object = self._stragglers()

    def _diagnosis(self) -> str:
        moment = self.moment
        layout, now = moment.layout, moment.update.now
        told = [diagnosis.words(layout, now, moment.told, wait) for wait in moment.waits]
        silent = [rank for rank, its in enumerate(now) if its.silent > 0 and not its.is_lost]
        if silent:
            told.insert(0, f"Nothing is heard of {diagnosis.named(layout, silent)}.")
        lost = [rank for rank, its in enumerate(now) if its.is_lost]
        if lost:
            was, them = ("was", "it") if len(lost) == 1 else ("were", "them")
            told.insert(0, f"{diagnosis.named(layout, lost).capitalize()} {was} lost; results on {them} are gone.")
        said = "".join(f"<p>{escape(each)}</p>" for each in told[:_SENTENCES])
        if len(told) > _SENTENCES:
            said += f"<p class=note>and {count(len(told) - _SENTENCES, 'more group')}</p>"
        if not told:
            said = f"<p>No: no rank has been in one operation for longer than {diagnosis.PATIENCE:.0f} s.</p>"
        waiting = moment.late("waiting")
        mean = percent(float(np.nanmean(waiting))) if np.isfinite(waiting).any() else UNKNOWN
        return (
            f"{said}<div class=tiles style='margin-top:12px'>"
            f"<div class=tile><b>{mean}</b>of its time the mean rank waits</div>"
            f"<div class=tile><b>{percent(moment.imbalance)}</b>imbalance of computing</div></div>"
        )

    def _stragglers(self) -> str:
        moment = self.moment
        compute, waiting = moment.late("compute"), moment.late("waiting")
        order = np.argsort(np.nan_to_num(-compute))[:_RANKS]
        told = [
            [
                f"<b>Rank {escape(moment.names[rank])}</b>",
                escape(moment.layout.nodes[moment.layout.ranks[rank].node]),
                f"{cards.bar(float(np.nan_to_num(compute[rank])))} {percent(compute[rank])}",
                percent(waiting[rank]),
                escape(diagnosis.doing(moment.update.now[rank], moment.told)),
            ]
            for rank in order
        ]
        return cards.rows(("Rank", "Node", "Computes", "Waits", "Now"), told, wide=4)

    def _band(self, source: ColumnDataSource, colour: str) -> Any:
        made = charts.plot(self.theme, 220, y_range=(0, 1))
        charts.over_time(made)
        made.varea("time", "p10", "p90", source=source, fill_color=colour, fill_alpha=0.25, legend_label="eight of ten")
        made.line("time", "most", source=source, line_color=colour, line_dash=[3, 3], legend_label="most")
        line = made.line("time", "median", source=source, line_color=colour, line_width=2, legend_label="median")
        charts.legend(made, self.theme)
        made.yaxis.formatter = NumeralTickFormatter(format="0 %")
        made.yaxis.ticker.desired_num_ticks = 5
        told = [(name, f"@{name}{{0 %}}") for name in _BAND]
        charts.hover(made, [line], told)
        return made

    def _band_table(self, field: str) -> pd.DataFrame:
        numbers: NDArray[Any] = self.moment.of_ranks(field)[self.ticks]
        known = np.isfinite(numbers).any(axis=1)
        # one rank that has told nothing must not hide the others; but where all have told it is twenty times dearer
        percentile = np.percentile if np.isfinite(numbers).all() else np.nanpercentile
        bands = percentile(numbers[known], (10, 50, 90, 100), axis=1) if known.any() else np.zeros((4, 0))
        return pd.DataFrame({"time": self.moment.times[self.ticks][known], **dict(zip(_BAND, bands, strict=True))})

    def _group_table(self) -> pd.DataFrame:
        groups: dict[str, list[str]] = {}
        for its in self.moment.update.now:
            name, colour = self._group(its)
            groups.setdefault(name, []).append(colour)
        # some ranks may be in an operation for a moment and others for long: the bar is of those that wait
        waits = self.theme.shares[2]
        rows = [
            (name, len(groups[name]), waits if waits in groups[name] else groups[name][0])
            for name in sorted(groups, key=lambda name: -len(groups[name]))
        ]
        return pd.DataFrame(rows, columns=["doing", "ranks", "colour"])

    def _group(self, now: RankActivity) -> tuple[str, str]:
        compute, mpi, waiting, idle = self.theme.shares
        if now.is_lost:
            return "lost", self.theme.bad
        if now.silent > 0:
            return "silent", self.theme.bad
        if now.operation:
            return now.operation, waiting if self.moment.told - now.since >= diagnosis.PATIENCE else mpi
        return (f"{now.what}, outside MPI", compute) if now.what else ("idle", idle)
