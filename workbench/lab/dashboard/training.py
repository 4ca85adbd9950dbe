"""The progress of a fit, and the time of its iterations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import panel as pn
from bokeh.models import ColumnDataSource

from workbench.lab.dashboard import cards, charts
from workbench.lab.dashboard.format import number, second, span
from workbench.lab.dashboard.page import Page
from workbench.lab.dashboard.snapshot import SHARES, means
from workbench.metrics.schema import RANK, TICK
from workbench.metrics.training import RESERVED

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Maximum of curves, of steps of each, and of fits to choose from.
_CHARTS_SHOWN, _STEPS_SHOWN, _FITS_SHOWN = 4, 500, 100
# A fit with a record in this time before the latest record is still running.
_RUNNING_S = 10.0
# Records within this time came in one message.
_SAME_MESSAGE_S = 0.01
# Bokeh's arrow is black in the dark theme, too.
_SELECT = """
select.bk-input { background-color: var(--card); color: var(--text); border: 1px solid var(--line); border-radius: 8px;
  font-size: 13px; }
:host select.bk-input:not([multiple]) { background-image: url("data:image/svg+xml;utf8,<svg viewBox='0 0 25 20' \
xmlns='http://www.w3.org/2000/svg'><path d='M0 0h25L12.5 20Z' fill='%23888'/></svg>"); }
"""


class Training(Page):
    """Values of each iteration as curves, and the time of each."""

    def build(self) -> Any:
        """Make the card of fits; the cards of curves follow when their names are known."""
        self._summary = cards.html()
        self._choice = pn.widgets.Select(options={"latest": ""}, width=300, margin=(4, 0, 0, 0), stylesheets=[_SELECT])
        self._choice.link(self.view_state, value="fit")
        # By the names of the values: a row of charts and the source of each.
        self._rows: dict[tuple[str, ...], tuple[Any, dict[str, Any]]] = {}
        self._spent: Any = ColumnDataSource({"step": [], **{share: [] for share in SHARES}})
        chart = charts.share_bars(self.theme, self._spent, "step", "step", "{seconds}")
        charts.numbers(chart, "seconds")
        chart.xaxis.axis_label = "step"
        self._spent_card = self.cards.chart(
            "Time of each step",
            chart,
            self._spent_table,
            "Seconds per step, divided like the time of the ranks during the step",
        )
        self._fits = self.cards.text("Fits", cards.column(*[self._choice] * self.cards.live, self._summary))
        return cards.column(self._fits)

    def draw(self) -> None:
        """Show the snapshot."""
        by_fit: dict[str, list[dict[str, Any]]] = {}
        for record in self.snapshot.fits:
            by_fit.setdefault(record["fit"], []).append(record)
        # Fits are in the order of their begin, which stays: ranks report in another order at each step.
        labels: dict[str, str] = {}
        for place, (fit, records) in enumerate(by_fit.items(), _FITS_SHOWN - len(by_fit)):
            if place >= 0 or fit == self.view_state.fit:
                label = f"{records[0]['name']}, begun {second(records[0]['time'])}"
                labels[cards.unique_name(label, labels, " #")] = fit
        options = {"latest": "", **dict(reversed(labels.items()))}
        if self.view_state.fit and self.view_state.fit not in by_fit:
            options["no longer available"] = self.view_state.fit
        if options != self._choice.options:
            self._choice.options = options
        if self._choice.value != self.view_state.fit:
            self._choice.value = self.view_state.fit
        latest = max((records[-1]["time"] for records in by_fit.values()), default=0.0)
        running = [fit for fit, records in by_fit.items() if records[-1]["time"] >= latest - _RUNNING_S]
        chosen = self.view_state.fit or (running[-1] if running else "")
        if chosen not in by_fit:
            self._show_row(())
            self._summary.object = (
                "<p class=note>Nothing has been trained yet. Fits of workbench.ml appear here automatically, and so do "
                "values that your code logs with <code>workbench.report(step, loss=...)</code>.</p>"
            )
            return
        self._draw(by_fit[chosen])

    def _draw(self, records: list[dict[str, Any]]) -> None:
        steps = records[-_STEPS_SHOWN:]
        names = tuple(dict.fromkeys(name for step in steps for name in step if name not in RESERVED))
        for name, source in self._row(names[:_CHARTS_SHOWN]).items():
            points = [(record["step"], record[name]) for record in steps if name in record]
            source.data = {"step": [step for step, _ in points], name: [value for _, value in points]}
        self._spent.data = self._times(steps)
        last = records[-1]
        since = self.snapshot.time - last["time"]
        when = f"{span(since)} ago" if since >= 1 else "just now"
        step_seconds = (last["time"] - steps[0]["time"]) / max(1, len(steps) - 1)
        tiles = (
            (str(last["name"]), f"begun {second(records[0]['time'])}"),
            (f"{last['step']:g}", f"last step, {when}"),
            (span(step_seconds), "per step"),
            *((number(last[name]), _title(name)) for name in names if name in last),
        )
        self._summary.object = f"<div class=tiles>{''.join(cards.tile(*tile) for tile in tiles)}</div>"
        # After the data was set: a browser may receive a change to a new chart before the chart itself.
        self._show_row(names[:_CHARTS_SHOWN])

    def _row(self, names: tuple[str, ...]) -> dict[str, Any]:
        """Return the data source of each curve of these names; make the charts if necessary."""
        if names not in self._rows:
            sources: dict[str, Any] = {name: ColumnDataSource({"step": [], name: []}) for name in names}
            self._rows[names] = cards.row(*(self._curve(name, source) for name, source in sources.items())), sources
        return self._rows[names][1]

    def _show_row(self, names: tuple[str, ...]) -> None:
        """Show only the charts of these names.

        Other charts are hidden and not removed: fits may follow one another faster than a browser makes charts.
        """
        for shown, (row, _) in self._rows.items():
            row.visible = shown == names
        self._spent_card.visible = bool(names)
        rows = [row for row, _ in self._rows.values()]
        if len(self.view) != len(rows) + 2:
            self.view[:] = [self._fits, *rows, self._spent_card]

    def _curve(self, name: str, source: Any) -> Any:
        chart = charts.plot(self.theme, 230)
        line = chart.line("step", name, source=source, line_color=self.theme.accent, line_width=2)
        chart.xaxis.axis_label = "step"
        chart.yaxis.formatter = charts.tick_format("number")
        chart.yaxis.ticker.desired_num_ticks = 5
        charts.hover(chart, [line], [("step", "@step"), (_title(name), f"@{{{name}}}{{number}}")])
        return self.cards.chart(_title(name).capitalize(), chart, lambda: pd.DataFrame(source.data), "By step")

    def _times(self, steps: list[dict[str, Any]]) -> dict[str, NDArray[Any]]:
        """Return the seconds of each step by share, from the ticks during the step."""
        moments = spread(np.array([step["time"] for step in steps]))
        seconds = np.maximum(np.diff(moments), 0)
        first, last = (int(np.searchsorted(self.snapshot.times, moments[at])) for at in (0, -1))
        ticks = slice(max(0, first - 1), last + 1)
        times = self.snapshot.times[ticks]
        columns = [RANK.index(share) for share in SHARES]
        parts = (
            np.nan_to_num(means(self.snapshot.rank[ticks][:, :, columns].swapaxes(0, 1)))
            if len(times)
            else np.zeros((0, 4))
        )
        sums = np.concatenate([np.zeros((1, 4)), np.cumsum(parts, axis=0)])
        begin = np.searchsorted(times, moments[:-1], side="right")
        # A step within one tick has the shares of this tick.
        end = np.maximum(np.searchsorted(times, moments[1:] + TICK / 10, side="right"), begin + 1).clip(max=len(parts))
        begin = np.minimum(begin, np.maximum(end - 1, 0))
        mean = (sums[end] - sums[begin]) / np.maximum(end - begin, 1)[:, None]
        table = mean * seconds[:, None]
        return {"step": np.array([step["step"] for step in steps[1:]]), **dict(zip(SHARES, table.T, strict=True))}

    def _spent_table(self) -> pd.DataFrame:
        return pd.DataFrame(dict(self._spent.data))


def spread(times: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the ends of steps from the times of their records; steps of one message are spread evenly."""
    ends, begin = times.astype(np.float64), 0
    while begin < len(times):
        end = int(np.searchsorted(times, times[begin] + _SAME_MESSAGE_S, side="right"))
        if begin and end - begin > 1:
            ends[begin:end] = np.linspace(times[begin - 1], times[end - 1], end - begin + 1)[1:]
        begin = max(end, begin + 1)
    return ends


def _title(name: str) -> str:
    return name.replace("_", " ")
