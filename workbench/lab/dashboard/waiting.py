"""MPI wait times: stalled operations, load balance, stragglers."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from bokeh.models import ColumnDataSource, FactorRange, NumeralTickFormatter

from workbench.lab.dashboard import cards, charts, diagnosis
from workbench.lab.dashboard.format import percent
from workbench.lab.dashboard.page import Page
from workbench.lab.dashboard.snapshot import means
from workbench.metrics.update import RankActivity
from workbench.text import count

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Maximum of operations in the chart, of sentences, and of ranks in the table.
_GROUPS_SHOWN, _SENTENCES_SHOWN, _RANKS_SHOWN = 8, 4, 12
_BAND = ("p10", "median", "p90", "most")


class Waiting(Page):
    """Current operations, stalled operations, wait and compute time over time, stragglers."""

    def build(self) -> Any:
        """Make all cards."""
        theme = self.theme
        self._words, self._table = cards.html(), cards.html()
        self._groups = ColumnDataSource({"name": [], "ranks": [], "color": []})
        self._waits, self._works = (ColumnDataSource({"time": [], **{name: [] for name in _BAND}}) for _ in range(2))
        groups = charts.plot(theme, 220, y_range=FactorRange())
        self._names = groups.y_range
        bars = groups.hbar(
            "name", right="ranks", height=0.6, source=self._groups, fill_color="color", line_color=theme.muted
        )
        groups.x_range.start = 0
        groups.xaxis.ticker.min_interval = 1
        groups.xaxis.formatter = NumeralTickFormatter(format="0")
        groups.ygrid.visible, groups.xgrid.visible = False, True
        charts.hover(groups, [bars], [("", "@name"), ("ranks", "@ranks")])
        self._bands = [self._band(self._waits, theme.shares[2]), self._band(self._works, theme.shares[0])]
        waits = "Fraction of time, over the ranks"
        works = "Fraction of time; a wide band is a load imbalance"
        return cards.column(
            self.cards.text("Stalled operations", self._words),
            cards.row(
                self.cards.chart("Current operations", groups, self._group_table, "Number of ranks in each operation"),
                self.cards.chart("Waiting for others", self._bands[0], lambda: self._band_table("waiting"), waits),
                self.cards.chart("Computing", self._bands[1], lambda: self._band_table("compute"), works),
            ),
            self.cards.text("Stragglers", self._table, "Ranks with the most compute time, while others wait"),
        )

    def draw(self) -> None:
        """Show the snapshot."""
        self._words.object = self._diagnosis()
        table = self._group_table()[::-1].tail(_GROUPS_SHOWN)
        names = list(table["doing"])
        if names != self._names.factors:
            self._names.factors = names
        self._groups.data = {"name": names, "ranks": table["ranks"].to_numpy(), "color": table["color"].to_list()}
        for source, field in ((self._waits, "waiting"), (self._works, "compute")):
            band = self._band_table(field)
            source.data = {
                "time": charts.local(band["time"].to_numpy()),
                **{name: band[name].to_numpy() for name in _BAND},
            }
        for chart in self._bands:
            charts.show_span(chart, *self.span)
        self._table.object = self._stragglers()

    def _diagnosis(self) -> str:
        snapshot = self.snapshot
        layout, now = snapshot.layout, snapshot.update.now
        sentences = [diagnosis.describe_wait(layout, now, snapshot.valid_at, wait) for wait in snapshot.waits]
        silent = [rank for rank, activity in enumerate(now) if activity.silent > 0 and not activity.is_lost]
        if silent:
            send = "sends" if len(silent) == 1 else "send"
            sentences.insert(0, f"{diagnosis.rank_names(layout, silent).capitalize()} {send} no samples.")
        lost = [rank for rank, activity in enumerate(now) if activity.is_lost]
        if lost:
            was, them = ("was", "it") if len(lost) == 1 else ("were", "them")
            sentences.insert(
                0, f"{diagnosis.rank_names(layout, lost).capitalize()} {was} lost; results on {them} are lost."
            )
        html = "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences[:_SENTENCES_SHOWN])
        if len(sentences) > _SENTENCES_SHOWN:
            html += f"<p class=note>and {count(len(sentences) - _SENTENCES_SHOWN, 'more group')}</p>"
        if not sentences:
            html = f"<p>None: no rank has been in one operation for longer than {diagnosis.PATIENCE:.0f} s.</p>"
        mean = percent(float(means(snapshot.recent_mean("waiting"))))
        return (
            f"{html}<div class=tiles style='max-width: 480px'>{cards.tile(mean, 'of the time waiting for others')}"
            f"{cards.tile(percent(snapshot.imbalance), 'load imbalance')}</div>"
        )

    def _stragglers(self) -> str:
        snapshot = self.snapshot
        compute, waiting = snapshot.recent_mean("compute"), snapshot.recent_mean("waiting")
        order = np.argsort(np.nan_to_num(-compute))[:_RANKS_SHOWN]
        rows = [
            [
                f"<b>Rank {escape(snapshot.names[rank])}</b>",
                escape(snapshot.layout.nodes[snapshot.layout.ranks[rank].node]),
                f"{cards.bar(float(np.nan_to_num(compute[rank])))} {percent(compute[rank])}",
                percent(waiting[rank]),
                escape(diagnosis.describe_activity(snapshot.update.now[rank], snapshot.valid_at)),
            ]
            for rank in order
        ]
        return cards.rows(("Rank", "Node", "Compute", "Waiting", "Activity"), rows, wide=4)

    def _band(self, source: ColumnDataSource, color: str) -> Any:
        chart = charts.plot(self.theme, 220, y_range=(0, 1))
        charts.over_time(chart)
        chart.varea("time", "p10", "p90", source=source, fill_color=color, fill_alpha=0.25, legend_label="10-90 %")
        chart.line("time", "most", source=source, line_color=color, line_dash=[3, 3], legend_label="maximum")
        line = chart.line("time", "median", source=source, line_color=color, line_width=2, legend_label="median")
        charts.legend(chart, self.theme)
        chart.yaxis.formatter = NumeralTickFormatter(format="0 %")
        chart.yaxis.ticker.desired_num_ticks = 5
        tooltips = [(name, f"@{name}{{0 %}}") for name in _BAND]
        charts.hover(chart, [line], tooltips)
        return chart

    def _band_table(self, field: str) -> pd.DataFrame:
        numbers: NDArray[Any] = self.snapshot.of_ranks(field)[self.ticks]
        known = np.isfinite(numbers).any(axis=1)
        # nanpercentile takes twenty times as long, and is needed only if a rank has no sample.
        percentile = np.percentile if np.isfinite(numbers).all() else np.nanpercentile
        bands = percentile(numbers[known], (10, 50, 90, 100), axis=1) if known.any() else np.zeros((4, 0))
        return pd.DataFrame({"time": self.snapshot.times[self.ticks][known], **dict(zip(_BAND, bands, strict=True))})

    def _group_table(self) -> pd.DataFrame:
        groups: dict[str, list[str]] = {}
        for activity in self.snapshot.update.now:
            name, color = self._group(activity)
            groups.setdefault(name, []).append(color)
        # If some ranks have been in an operation for long, the bar has the color of waiting.
        waits = self.theme.shares[2]
        rows = [
            (name, len(groups[name]), waits if waits in groups[name] else groups[name][0])
            for name in sorted(groups, key=lambda name: -len(groups[name]))
        ]
        return pd.DataFrame(rows, columns=["doing", "ranks", "color"])

    def _group(self, now: RankActivity) -> tuple[str, str]:
        compute, mpi, waiting, idle = self.theme.shares
        if now.is_lost:
            return "lost", self.theme.bad
        if now.silent > 0:
            return "silent", self.theme.bad
        if now.operation:
            return now.operation, waiting if self.snapshot.valid_at - now.since >= diagnosis.PATIENCE else mpi
        return (f"{now.what}, outside MPI", compute) if now.what else ("idle", idle)
