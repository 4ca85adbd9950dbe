"""The state of the cluster, and the ranks with problems."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from bokeh.models import ColumnDataSource, NumeralTickFormatter

from workbench.dashboard import cards, charts
from workbench.dashboard.colour_scale import ColourScale
from workbench.dashboard.diagnosis import describe_activity, time_ago
from workbench.dashboard.format import percent, rate, size
from workbench.dashboard.page import Page, long
from workbench.dashboard.snapshot import SHARES, Snapshot, means
from workbench.metrics.schema import NODE
from workbench.text import clock, count, duration

if TYPE_CHECKING:
    from numpy.typing import NDArray


# Maximum of ranks with a bar each; above, the bars are nodes.
_RANKS_SHOWN = 64
# Remaining walltime that is shown as a warning.
_SHORT_WALLTIME_S = 600


class Overview(Page):
    """State, suspect ranks, CPU over time, fractions of time, memory."""

    def build(self) -> Any:
        """Make all cards."""
        theme, names = self.theme, self.snapshot.names
        self._tiles, self._worst = cards.html(), cards.html()
        self._heat = charts.HeatMap(theme, 330, names, None, unit="percent", hover_titles=("rank", "time", "CPU"))
        self._shares = ColumnDataSource({"rank": [], "name": [], **{share: [] for share in SHARES}})
        self._memory = ColumnDataSource({"at": [], "name": [], "used": [], "total": []})
        self._by_rank = len(names) <= _RANKS_SHOWN
        memory = "Memory of each rank" if self._by_rank else "Memory of each node"
        note = "Resident bytes" if self._by_rank else "Used and total bytes"
        return cards.column(
            cards.row(
                self.cards.text("Cluster", self._tiles),
                self.cards.text("Worth a look", self._worst),
                widths=(620, 360),
            ),
            self.cards.chart(
                "CPU of each rank", self._heat.figure, self._cpu_table, "Percent of one core, two samples per second"
            ),
            cards.row(
                self.cards.chart(
                    "Where time goes",
                    self._share_chart(),
                    self._share_table,
                    "Fractions of the last five seconds by rank",
                ),
                self.cards.chart(memory, self._memory_chart(), self._memory_table, note),
            ),
        )

    def draw(self) -> None:
        """Show the snapshot."""
        snapshot = self.snapshot
        self._tiles.object = self._cluster()
        rows = [
            [f"<b>Rank {escape(snapshot.names[suspect.rank])}</b>", escape(suspect.why)]
            for suspect in suspects(snapshot)
        ]
        self._worst.object = (
            cards.rows(("Rank", "Why"), rows, wide=1) if rows else "<p class=note>No rank stands out.</p>"
        )
        times, cpu, tick = self.over_time(snapshot.of_ranks("cpu"))
        top = float(np.nanmax(cpu)) if np.isfinite(cpu).any() else 0.0
        self._heat.draw(
            cpu,
            ColourScale.even(100.0 * max(1, np.ceil(top / 100 - 0.2))),
            lambda number: f"{number:.0f} %",
            times,
            tick,
        )
        charts.show_span(self._heat.figure, *self.span)
        self._shares.data = {
            "rank": np.arange(len(snapshot.names)),
            "name": snapshot.names,
            **{share: np.nan_to_num(snapshot.recent_mean(share)) for share in SHARES},
        }
        names, used, total = self._memory_usage()
        self._memory.data = {"at": np.arange(len(names)), "name": names, "used": used, "total": total}

    def _cluster(self) -> str:
        snapshot, state = self.snapshot, self.snapshot.update.state
        present, wanted = state.get("present", 0), state.get("ranks", 0)
        ends, cpu, nodes = state.get("ends"), snapshot.recent_mean("cpu"), snapshot.recent_node_means
        left = max(0.0, (ends or 0.0) - snapshot.valid_at)
        used, total = (np.nansum(nodes[:, NODE.index(name)]) for name in ("memory", "memory_total"))
        tiles = [
            (str(state.get("state", "unknown")).capitalize(), "state", state.get("state") not in ("ready", "starting")),
            (f"{present} of {wanted}", f"ranks on {count(len(snapshot.layout.nodes), 'node')}", present < wanted),
            *([(duration(left), f"left, until {clock(ends)}", left < _SHORT_WALLTIME_S)] if ends else []),
            (percent(float(means(cpu)) / 100), "mean CPU per rank (100 % = one core)", False),
            (percent(float(means(snapshot.recent_mean("compute")))), "of the time computing", False),
            (size(float(used)), f"node memory, of {size(float(total))}", bool(used > 0.9 * total)),
            (rate(float(np.nansum(snapshot.recent_mean("sent")))), "sent by all ranks", False),
            (percent(snapshot.imbalance), "load imbalance", False),
        ]
        shown = "".join(
            f"<div class=tile><b{' class=bad' if bad else ''}>{escape(str(value))}</b>{escape(label)}</div>"
            for value, label, bad in tiles
        )
        message = (
            f"<p class=note style='margin-top:8px'>{escape(str(state['message']))}</p>" if state.get("message") else ""
        )
        return f"<div class=tiles>{shown}</div>{message}"

    def _share_chart(self) -> Any:
        thin = len(self.snapshot.names) > _RANKS_SHOWN
        chart = charts.share_bars(self.theme, self._shares, "rank", "name", "{0 %}", thin=thin, y_range=(0, 1))
        charts.name_ticks(chart.xaxis[0], self.snapshot.names)
        chart.yaxis.formatter = NumeralTickFormatter(format="0 %")
        chart.x_range.range_padding = 0.01 if thin else 0.1
        return chart

    def _memory_chart(self) -> Any:
        chart = charts.plot(self.theme, 260)
        if not self._by_rank:
            chart.vbar("at", 0.8, "total", source=self._memory, fill_color=self.theme.line, line_color=None)
        bars = chart.vbar("at", 0.8, "used", source=self._memory, fill_color=self.theme.accent, line_color=None)
        charts.numbers(chart, "bytes")
        charts.name_ticks(chart.xaxis[0], self.snapshot.names if self._by_rank else self.snapshot.layout.nodes)
        of_total = [] if self._by_rank else [("of", "@total{0.[0] ib}")]
        charts.hover(chart, [bars], [("", "@name"), ("used", "@used{0.[0] ib}"), *of_total])
        return chart

    def _memory_usage(self) -> tuple[list[str], Any, Any]:
        snapshot = self.snapshot
        if self._by_rank:
            used = np.nan_to_num(snapshot.recent_mean("memory"))
            return snapshot.names, used, used
        nodes = np.nan_to_num(snapshot.recent_node_means)
        return list(snapshot.layout.nodes), nodes[:, NODE.index("memory")], nodes[:, NODE.index("memory_total")]

    def _cpu_table(self) -> pd.DataFrame:
        return long(self.snapshot.times, self.snapshot.names, self.snapshot.of_ranks("cpu"), "rank", "cpu_percent")

    def _share_table(self) -> pd.DataFrame:
        return pd.DataFrame(
            {"rank": self.snapshot.names, **{share: self.snapshot.recent_mean(share) for share in SHARES}}
        )

    def _memory_table(self) -> pd.DataFrame:
        names, used, total = self._memory_usage()
        return pd.DataFrame({"name": names, "used_bytes": used, **({} if self._by_rank else {"total_bytes": total})})


# A rank, a score that grows with the problem, and the reason.
_Mark = tuple[int, float, str]
_SUSPECTS_SHOWN = 3
# Fraction of a node's memory above which its largest rank is a suspect.
_FULL_MEMORY = 0.9


@dataclass(frozen=True)
class Suspect:
    """A rank that may delay others: its index in `Layout.ranks`, and the reason."""

    rank: int
    why: str


def suspects(snapshot: Snapshot) -> list[Suspect]:
    """Return the ranks that delay others or have a problem, sorted by score."""
    reasons: dict[int, str] = {}
    for rank, _, why in sorted(
        (*_activity_marks(snapshot), *_number_marks(snapshot), *_node_marks(snapshot)), key=lambda mark: -mark[1]
    ):
        reasons.setdefault(rank, why)
    return [Suspect(rank, why) for rank, why in islice(reasons.items(), _SUSPECTS_SHOWN)]


def _activity_marks(snapshot: Snapshot) -> Iterator[_Mark]:
    now = snapshot.update.now
    for rank, activity in enumerate(now):
        if activity.is_lost:
            yield rank, math.inf, f"was lost {time_ago(activity, snapshot.valid_at)}; results on it are lost"
        elif activity.silent > 0:
            yield rank, 1000 + activity.silent, f"has sent no samples for {duration(activity.silent)}"
    for wait in snapshot.waits:
        # If a minority is missing they are stragglers; if the majority is, the waiting ranks are merely early.
        if 0 < len(wait.awaited) <= len(wait.waiting):
            waiting = count(len(wait.waiting), "rank")
            verb = "waits" if len(wait.waiting) == 1 else "wait"
            for rank in wait.awaited:
                does = describe_activity(now[rank], snapshot.valid_at)
                yield rank, 500 + wait.seconds, f"{waiting} {verb} for it in {wait.operation}; it is {does}"


def _number_marks(snapshot: Snapshot) -> Iterator[_Mark]:
    compute, waiting, memory = (
        snapshot.recent_mean("compute"),
        snapshot.recent_mean("waiting"),
        snapshot.recent_mean("memory"),
    )
    if not np.isfinite(compute).any():
        return
    beside = f"the median rank {percent(float(np.nanmedian(compute)))}"
    for rank in _largest(compute, 0.15):
        yield rank, 100 * compute[rank], f"computes {percent(compute[rank])} of the time, {beside}"
    for rank in _largest(waiting, 0.3):
        yield rank, 50 * waiting[rank], f"waits for others {percent(waiting[rank])} of the time"
    median = float(np.nanmedian(memory))
    for rank in _largest(memory, 0.5 * median):
        yield rank, 30, f"has {size(memory[rank])} in memory, the median rank {size(median)}"


def _node_marks(snapshot: Snapshot) -> Iterator[_Mark]:
    layout, nodes, memory = snapshot.layout, snapshot.recent_node_means, snapshot.recent_mean("memory")
    used = nodes[:, NODE.index("memory")] / nodes[:, NODE.index("memory_total")]
    for node in np.flatnonzero(used > _FULL_MEMORY):
        of_node = [rank for rank, place in enumerate(layout.ranks) if place.node == node]
        if of_node:
            largest = max(of_node, key=lambda rank: float(np.nan_to_num(memory[rank])))
            yield largest, 200, f"the memory of its node {layout.nodes[node]} is {percent(used[node])} full"


def _largest(numbers: NDArray[np.float32], beyond: float) -> list[int]:
    """Return the ranks whose numbers exceed the median by more than `beyond`, the largest first."""
    if not np.isfinite(numbers).any():
        return []
    order = np.argsort(np.nan_to_num(-numbers))[:_SUSPECTS_SHOWN]
    return [int(rank) for rank in order if numbers[rank] - np.nanmedian(numbers) > beyond]
