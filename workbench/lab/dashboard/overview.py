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

from workbench.lab.dashboard import cards, charts
from workbench.lab.dashboard.diagnosis import describe_activity, rank_names, time_ago
from workbench.lab.dashboard.format import percent, rate, size
from workbench.lab.dashboard.page import Page, long
from workbench.lab.dashboard.snapshot import SHARES, Snapshot, means
from workbench.lab.dashboard.theme import ColorScale
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
        self._summary = cards.html()
        self._heat = charts.HeatMap(theme, 330, names, None, unit="percent", hover_titles=("rank", "time", "CPU"))
        self._shares = ColumnDataSource({"rank": [], "name": [], **{share: [] for share in SHARES}})
        self._memory = ColumnDataSource({"at": [], "name": [], "used": [], "total": []})
        self._by_rank = len(names) <= _RANKS_SHOWN
        memory = "Memory of each rank" if self._by_rank else "Memory of each node"
        note = "Resident bytes" if self._by_rank else "Used and total bytes"
        return cards.column(
            self.cards.text("Cluster", self._summary),
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
        self._summary.object = f"{self._state()}{self._tiles()}{self._facts()}"
        times, cpu, tick = self.over_time(snapshot.of_ranks("cpu"))
        top = float(np.nanmax(cpu)) if np.isfinite(cpu).any() else 0.0
        self._heat.draw(
            cpu,
            ColorScale.even(100.0 * max(1, np.ceil(top / 100 - 0.2))),
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

    def _state(self) -> str:
        """Return the state, the remaining walltime and the last message."""
        state = self.snapshot.update.state
        name, ends, message = str(state.get("state", "unknown")), state.get("ends"), str(state.get("message") or "")
        kind = "good" if name == "ready" else "" if name == "starting" else "bad"
        html = f"<span class='{kind}'><span class=dot></span><b>{escape(name.capitalize())}</b></span>"
        if ends:
            left = max(0.0, ends - self.snapshot.valid_at)
            short = " class=bad" if left < _SHORT_WALLTIME_S else ""
            html += f", <span{short}><b>{duration(left)}</b> left, until {clock(ends)}</span>"
        return f"<p>{html} <span class=note>{escape(message)}</span></p>"

    def _tiles(self) -> str:
        snapshot, state, nodes = self.snapshot, self.snapshot.update.state, self.snapshot.recent_node_means
        present, wanted = state.get("present", 0), state.get("ranks", 0)
        used, total = (float(np.nansum(nodes[:, NODE.index(name)])) for name in ("memory", "memory_total"))
        cpu, compute, sent = (snapshot.recent_mean(name) for name in ("cpu", "compute", "sent"))
        tiles = (
            cards.tile(
                f"{present} of {wanted}", f"ranks on {count(len(snapshot.layout.nodes), 'node')}", bad=present < wanted
            ),
            cards.tile(percent(float(means(cpu)) / 100), "of a core per rank"),
            cards.tile(percent(float(means(compute))), "of the time computing"),
            cards.tile(percent(snapshot.imbalance), "load imbalance"),
            cards.tile(size(used), f"node memory, of {size(total)}", bad=used > 0.9 * total),
            cards.tile(rate(float(np.nansum(sent))), "sent by all ranks"),
        )
        return f"<div class=six><div class=tiles>{''.join(tiles)}</div></div>"

    def _facts(self) -> str:
        """Return what readers of the numbers should know: cores that ranks share, and suspect ranks."""
        suspect = [
            f"<b>Rank {escape(self.snapshot.names[each.rank])}</b> {escape(each.why)}"
            for each in suspects(self.snapshot)
        ]
        shared = shared_cores(self.snapshot)
        facts = ("Shared cores", [escape(shared)] * bool(shared)), ("Worth a look", suspect or ["No rank stands out."])
        html = "".join(
            f"<dt>{name}</dt>{''.join(f'<dd>{value}</dd>' for value in values)}" for name, values in facts if values
        )
        return f"<dl class=facts>{html}</dl>"

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


def shared_cores(snapshot: Snapshot) -> str:
    """Return a sentence about the cores with the most ranks per core; empty if no rank must share its core."""
    layout, now = snapshot.layout, snapshot.update.now
    present = [(shared, [rank for rank in shared.ranks if not now[rank].is_lost]) for shared in layout.shared_cores]
    crowded = [(len(ranks) / shared.cores, len(ranks), shared, ranks) for shared, ranks in present]
    ratio, number, shared, ranks = max(crowded, key=lambda each: each[:2], default=(0.0, 0, None, []))
    if shared is None or ratio <= 1:
        return ""
    bound = len(shared.ranks) < sum(place.node == shared.node for place in layout.ranks)
    names = rank_names(layout, ranks) if bound else f"{number} ranks"
    where = f" of {layout.nodes[shared.node]}" if len(layout.nodes) > 1 else ""
    return f"{names} on {count(shared.cores, 'core')}{where}: {percent(1 / ratio)} each if all compute"


# A rank, a score that grows with the problem, and the reason.
_Mark = tuple[int, float, str]
_SUSPECTS_SHOWN = 3
# Fraction of a node's memory above which its largest rank is a suspect.
_FULL_MEMORY = 0.9


@dataclass(frozen=True)
class Suspect:
    """A rank that may delay others: its index in `Layout.ranks`, and the reason, of which the rank is the subject."""

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
            waiting = f"keeps {count(len(wait.waiting), 'rank')} waiting in {wait.operation}"
            for rank in wait.awaited:
                yield rank, 500 + wait.seconds, f"{waiting}; it is {describe_activity(now[rank], snapshot.valid_at)}"


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
            yield (
                largest,
                200,
                f"uses the most memory of node {layout.nodes[node]}, which is {percent(used[node])} full",
            )


def _largest(numbers: NDArray[np.float32], beyond: float) -> list[int]:
    """Return the ranks whose numbers exceed the median by more than `beyond`, the largest first."""
    if not np.isfinite(numbers).any():
        return []
    order = np.argsort(np.nan_to_num(-numbers))[:_SUSPECTS_SHOWN]
    return [int(rank) for rank in order if numbers[rank] - np.nanmedian(numbers) > beyond]
