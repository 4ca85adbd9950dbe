"""Every core of every node, like htop."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from workbench.lab.dashboard import cards, charts
from workbench.lab.dashboard.format import percent, rate, size
from workbench.lab.dashboard.page import Page, long
from workbench.lab.dashboard.snapshot import means
from workbench.lab.dashboard.theme import ColorScale
from workbench.metrics.schema import NODE
from workbench.metrics.update import percents
from workbench.text import count

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Maximum of cores with a row each in the chart over time (above, the rows are nodes), and of rows in a table.
_CORES_SHOWN, _ROWS_SHOWN = 128, 64


class Cores(Page):
    """Cores now, cores or nodes over time, and a row for each node."""

    def build(self) -> Any:
        """Make all cards."""
        layout, theme = self.snapshot.layout, self.theme
        most, self._by_core = max(layout.cores, default=1), sum(layout.cores) <= _CORES_SHOWN
        grid = min(max(90, 24 * len(layout.nodes) + 60), 640)
        self._now = charts.HeatMap(
            theme,
            grid,
            layout.nodes,
            [str(core) for core in range(most)],
            unit="percent",
            hover_titles=("node", "core", "CPU"),
        )
        self._lines = self._cores() if self._by_core else list(layout.nodes)
        kind = "core" if self._by_core else "node"
        high = min(max(160, 16 * len(self._lines) + 60), 420)
        self._past = charts.HeatMap(theme, high, self._lines, None, unit="percent", hover_titles=(kind, "time", "CPU"))
        self._table, self._gpus = cards.html(), cards.html()
        self._gpu_card = self.cards.text(
            "GPUs", self._gpus, "GPUs that each rank sees, means of the last five seconds, sorted by load"
        )
        self._gpu_card.visible = False
        return cards.column(
            self.cards.chart(
                "Every core now", self._now.figure, self._now_table, "Percent; one row per node, one cell per core"
            ),
            self.cards.chart(
                f"CPU of each {kind} over time", self._past.figure, self._past_table, "Percent, two samples per second"
            ),
            self.cards.text("Nodes", self._table, "Means of the last five seconds, sorted by CPU"),
            self._gpu_card,
        )

    def draw(self) -> None:
        """Show the snapshot."""
        self._now.draw(self._grid(), ColorScale.even(100.0), _percent)
        times, values, tick = self.over_time(self._numbers())
        self._past.draw(values, ColorScale.even(100.0), _percent, times, tick)
        charts.show_span(self._past.figure, *self.span)
        self._table.object = self._nodes()
        self._draw_gpus()

    def _cores(self) -> list[str]:
        nodes, cores = self.snapshot.layout.nodes, self.snapshot.layout.cores
        if len(nodes) == 1:
            return [str(core) for core in range(cores[0])]
        return [f"{node}:{core}" for node, number in zip(nodes, cores, strict=True) for core in range(number)]

    def _grid(self) -> NDArray[np.float32]:
        cores = self.snapshot.layout.cores
        grid = np.full((len(cores), max(cores, default=1)), np.nan, np.float32)
        if len(self.snapshot.core):
            # The mask is filled row by row, in the order of the cores.
            grid[np.arange(grid.shape[1]) < np.array(cores)[:, None]] = percents(self.snapshot.core[-1])
        return grid

    def _numbers(self) -> NDArray[Any]:
        core, cores = self.snapshot.core, np.array(self.snapshot.layout.cores)
        if self._by_core:
            return percents(core)
        begins = np.concatenate([[0], np.cumsum(cores)[:-1]])
        # Only the ticks that are drawn: all ticks of thousands of cores would take long.
        by_node: NDArray[Any] = np.full((len(core), len(cores)), np.nan, np.float32)
        by_node[self.ticks] = np.add.reduceat(percents(core[self.ticks]), begins, axis=1) / cores
        return by_node

    def _nodes(self) -> str:
        snapshot = self.snapshot
        nodes, layout = snapshot.recent_node_means, snapshot.layout
        busy = means(self._grid().T) / 100
        ranks = np.bincount([place.node for place in layout.ranks], minlength=len(layout.nodes))
        rows = []
        for node in np.argsort(-busy, kind="stable")[:_ROWS_SHOWN]:
            numbers = dict(zip(NODE, nodes[node], strict=True))
            used, total = numbers["memory"], numbers["memory_total"]
            rows.append(
                [
                    f"<b>{escape(layout.nodes[node])}</b>",
                    str(ranks[node]),
                    f"{cards.bar(busy[node])} {percent(busy[node])}",
                    f"{cards.bar(used / total)} {size(used)} of {size(total)}",
                    *(rate(numbers[name]) for name in ("net_received", "net_sent", "read", "written")),
                ]
            )
        heads = ("Node", "Ranks", "CPU", "Memory", "Received", "Sent", "Read", "Written")
        more = len(layout.nodes) - len(rows)
        rest = f"<p class=note>and {count(more, 'node')} more</p>" if more > 0 else ""
        return f"{cards.rows(heads, rows, right=(1, 4, 5, 6, 7))}{rest}"

    def _draw_gpus(self) -> None:
        """Show the card of GPUs if a rank has one."""
        load, used, total = (self.snapshot.recent_mean(name) for name in ("gpu", "gpu_memory", "gpu_memory_total"))
        with_gpus = np.flatnonzero(np.nan_to_num(total) > 0)
        self._gpu_card.visible = bool(len(with_gpus))
        busiest = with_gpus[np.argsort(-load[with_gpus], kind="stable")][:_ROWS_SHOWN]
        rows = [
            [
                f"<b>Rank {escape(self.snapshot.names[rank])}</b>",
                f"{cards.bar(load[rank] / 100)} {percent(load[rank] / 100)}",
                f"{cards.bar(used[rank] / total[rank])} {size(used[rank])} of {size(total[rank])}",
            ]
            for rank in busiest
        ]
        self._gpus.object = cards.rows(("Rank", "Load", "Memory"), rows) if rows else ""

    def _now_table(self) -> pd.DataFrame:
        layout, grid = self.snapshot.layout, self._grid()
        node, core = np.divmod(np.arange(grid.size), grid.shape[1])
        table = pd.DataFrame({"node": np.array(layout.nodes)[node], "core": core, "cpu_percent": grid.ravel()})
        return table.dropna()

    def _past_table(self) -> pd.DataFrame:
        numbers = self._numbers()[self.ticks]
        return long(
            self.snapshot.times[self.ticks], self._lines, numbers, "core" if self._by_core else "node", "cpu_percent"
        )


def _percent(number: float) -> str:
    return f"{number:.0f} %"
