"""Is all well, and if not, where to look."""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np
import pandas as pd
from bokeh.models import ColumnDataSource, NumeralTickFormatter

from workbench.dashboard import cards, charts, worst_ranks
from workbench.dashboard.colour_scale import Coding
from workbench.dashboard.format import percent, rate, size
from workbench.dashboard.page import Page, long
from workbench.dashboard.share_bars import share_bars
from workbench.dashboard.snapshot import SHARES
from workbench.metrics.schema import NODE
from workbench.text import clock, count, duration

# More ranks than these have no bar each, but their nodes do.
_BARS = 64
# Seconds of walltime that are few.
_FEW = 600


class Overview(Page):
    """State, the worst ranks, CPU over time, shares of time and memory."""

    def build(self) -> Any:
        """Make all cards."""
        theme, names = self.theme, self.moment.names
        self._tiles, self._worst = cards.html(), cards.html()
        self._heat = charts.HeatMap(theme, 330, names, None, words="percent", told=("rank", "time", "CPU"))
        self._shares = ColumnDataSource({"rank": [], "name": [], **{share: [] for share in SHARES}})
        self._memory = ColumnDataSource({"at": [], "name": [], "used": [], "total": []})
        self._by_rank = len(names) <= _BARS
        memory = "Memory of each rank" if self._by_rank else "Memory of each node"
        noted = "Resident bytes" if self._by_rank else "Used, of what the node has"
        return cards.column(
            cards.row(
                self.cards.text("Cluster", self._tiles),
                self.cards.text("Worth a look", self._worst),
                widths=(620, 360),
            ),
            self.cards.chart(
                "CPU of each rank", self._heat.figure, self._cpu_table, "Percent of one core, each half second"
            ),
            cards.row(
                self.cards.chart(
                    "Where time goes", self._share_chart(), self._share_table, "Parts of the last five seconds, by rank"
                ),
                self.cards.chart(memory, self._memory_chart(), self._memory_table, noted),
            ),
        )

    def draw(self) -> None:
        """Show the moment."""
        moment = self.moment
        self._tiles.object = self._cluster()
        told = [
            [f"<b>Rank {escape(moment.names[worst.rank])}</b>", escape(worst.why)]
            for worst in worst_ranks.worst(moment)
        ]
        self._worst.object = (
            cards.rows(("Rank", "Why"), told, wide=1) if told else "<p class=note>No rank stands out.</p>"
        )
        times, cpu, tick = self.over_time(moment.of_ranks("cpu"))
        top = float(np.nanmax(cpu)) if np.isfinite(cpu).any() else 0.0
        self._heat.draw(
            cpu, Coding.even(100.0 * max(1, np.ceil(top / 100 - 0.2))), lambda its: f"{its:.0f} %", times, tick
        )
        charts.show_span(self._heat.figure, *self.span)
        self._shares.data = {
            "rank": np.arange(len(moment.names)),
            "name": moment.names,
            **{share: np.nan_to_num(moment.late(share)) for share in SHARES},
        }
        names, used, total = self._in_memory()
        self._memory.data = {"at": np.arange(len(names)), "name": names, "used": used, "total": total}

    def _cluster(self) -> str:
        moment, state = self.moment, self.moment.update.state
        present, wanted = state.get("present", 0), state.get("ranks", 0)
        ends, cpu, nodes = state.get("ends"), moment.late("cpu"), moment.nodes_lately
        left = max(0.0, (ends or 0.0) - moment.told)
        used, total = (np.nansum(nodes[:, NODE.index(name)]) for name in ("memory", "memory_total"))
        mean = float(np.nanmean(cpu)) / 100 if np.isfinite(cpu).any() else float("nan")
        tiles = [
            (str(state.get("state", "unknown")).capitalize(), "state", state.get("state") not in ("ready", "starting")),
            (f"{present} of {wanted}", f"ranks on {count(len(moment.layout.nodes), 'node')}", present < wanted),
            *([(duration(left), f"left, until {clock(ends)}", left < _FEW)] if ends else []),
            (percent(mean), "of a core, the mean rank", False),
            (
                percent(float(np.nanmean(moment.late("compute"))) if np.isfinite(cpu).any() else float("nan")),
                "of the time computing",
                False,
            ),
            (size(float(used)), f"node memory, of {size(float(total))}", bool(used > 0.9 * total)),
            (rate(float(np.nansum(moment.late("sent")))), "sent by all ranks", False),
            (percent(moment.imbalance), "imbalance of computing", False),
        ]
        shown = "".join(
            f"<div class=tile><b{' class=bad' if bad else ''}>{escape(str(value))}</b>{escape(what)}</div>"
            for value, what, bad in tiles
        )
        said = (
            f"<p class=note style='margin-top:8px'>{escape(str(state['message']))}</p>" if state.get("message") else ""
        )
        return f"<div class=tiles>{shown}</div>{said}"

    def _share_chart(self) -> Any:
        thin = len(self.moment.names) > _BARS
        made = share_bars(self.theme, self._shares, "rank", "name", "{0 %}", thin=thin, y_range=(0, 1))
        charts.name_ticks(made.xaxis[0], self.moment.names)
        made.yaxis.formatter = NumeralTickFormatter(format="0 %")
        made.x_range.range_padding = 0.01 if thin else 0.1
        return made

    def _memory_chart(self) -> Any:
        made = charts.plot(self.theme, 260)
        if not self._by_rank:
            made.vbar("at", 0.8, "total", source=self._memory, fill_color=self.theme.line, line_color=None)
        bars = made.vbar("at", 0.8, "used", source=self._memory, fill_color=self.theme.accent, line_color=None)
        charts.numbers(made, "bytes")
        charts.name_ticks(made.xaxis[0], self.moment.names if self._by_rank else self.moment.layout.nodes)
        of_total = [] if self._by_rank else [("of", "@total{0.[0] ib}")]
        charts.hover(made, [bars], [("", "@name"), ("used", "@used{0.[0] ib}"), *of_total])
        return made

    def _in_memory(self) -> tuple[list[str], Any, Any]:
        moment = self.moment
        if self._by_rank:
            used = np.nan_to_num(moment.late("memory"))
            return moment.names, used, used
        nodes = np.nan_to_num(moment.nodes_lately)
        return list(moment.layout.nodes), nodes[:, NODE.index("memory")], nodes[:, NODE.index("memory_total")]

    def _cpu_table(self) -> pd.DataFrame:
        return long(self.moment.times, self.moment.names, self.moment.of_ranks("cpu"), "rank", "cpu_percent")

    def _share_table(self) -> pd.DataFrame:
        return pd.DataFrame({"rank": self.moment.names, **{share: self.moment.late(share) for share in SHARES}})

    def _memory_table(self) -> pd.DataFrame:
        names, used, total = self._in_memory()
        return pd.DataFrame({"name": names, "used_bytes": used, **({} if self._by_rank else {"total_bytes": total})})
