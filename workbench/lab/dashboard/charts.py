"""Figures in one style, cheap enough to draw twice per second."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from bokeh.core.properties import value
from bokeh.models import (
    BasicTicker,
    ColumnDataSource,
    CustomJSHover,
    CustomJSTickFormatter,
    DatetimeTickFormatter,
    FixedTicker,
    HoverTool,
    LinearColorMapper,
    NoOverlap,
    Range1d,
    SaveTool,
    SingleIntervalTicker,
)
from bokeh.models.annotations import ColorBar
from bokeh.models.tools import PanTool, ResetTool, WheelZoomTool
from bokeh.plotting import figure

from workbench.lab.dashboard.snapshot import SHARE_TITLES, SHARES
from workbench.lab.dashboard.theme import FIRST, FONT, MISSING, TOP, ColorScale, Theme

if TYPE_CHECKING:
    from numpy.typing import NDArray

Figure = Any
"""A Bokeh figure; its properties are set by names that Bokeh's types do not know."""

_CLOCK = "%H:%M:%S"
# Pixels left of an axis of time, for the longest label: so the axes of charts below each other are aligned.
_LEFT_BORDER_PX = 64
# Maximum of rows and columns of a heat map that shows its numbers in the cells.
_NUMBERS_SHOWN = 8
# Maximum of rows and columns whose cells have borders: smaller cells would be more border than color.
_CELLS_WITH_BORDERS = 32
# In the color bar: codes of the color apart from the ramp, codes of the gap, and the minimum height of a figure in
# pixels for both.
_APART_CODES, _SPACE_CODES, _ROOM_FOR_BOTH_PX = 18, 10, 300

# JavaScript that decodes a cell of a heat map on a linear scale.
_DECODE = """
if (value == 255) return "no data"
const number = (value - 1) / 253 * scale.data.high[0]
"""
_BINARY = """
const power = number < 1 ? 0 : Math.min(5, Math.floor(Math.log2(number) / 10))
const unit = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"][power]
const size = Number((number / Math.pow(1024, power)).toPrecision(3)) + " " + unit
"""
WORDS = {
    "percent": "return number.toFixed(0) + ' %'",
    "bytes": f"{_BINARY} return size",
    "count": """
const step = [[1e12, " T"], [1e9, " G"], [1e6, " M"], [1e3, " k"]].find(([size, _]) => Math.abs(number) >= size)
return step ? Number((number / step[0]).toPrecision(3)) + step[1] : String(Number(number.toPrecision(3)))
""",
    "seconds": """
const small = 0 < number && number < 1
return (number * (small ? 1000 : 1)).toLocaleString("en", {maximumSignificantDigits: 3}) + (small ? " ms" : " s")
""",
    "number": """
if (number != 0 && !(1e-4 <= Math.abs(number) && Math.abs(number) < 1e9))
  return Number(number.toPrecision(4)).toExponential()
return number.toLocaleString("en", {maximumSignificantDigits: 5})
""",
}
"""JavaScript that formats a number, by its unit; runs after ``const number``."""


def plot(theme: Theme, height: int, **options: Any) -> Figure:
    """Return an empty figure of a height in pixels, with options of ``bokeh.plotting.figure``."""
    chart: Figure = figure(
        height=height,
        sizing_mode="stretch_width",
        min_width=200,
        toolbar_location="above",
        tools=[PanTool(), WheelZoomTool(), ResetTool(), SaveTool()],
        background_fill_color=theme.card,
        border_fill_color=theme.card,
        outline_line_color=None,
        min_border_right=16,
        **options,
    )
    chart.toolbar.logo = None
    chart.toolbar.autohide = True
    chart.toolbar_inner = True
    chart.toolbar.active_drag = None
    for axis in chart.axis:
        style_axis(axis, theme)
    # Narrow windows have room for some labels only.
    chart.xaxis.major_label_policy = NoOverlap(min_distance=8)
    chart.grid.grid_line_color = theme.line
    chart.xgrid.visible = False
    return chart


def style_axis(axis: Any, theme: Theme) -> None:
    """Style an axis by a theme."""
    axis.update(
        axis_line_color=None,
        major_tick_line_color=theme.line,
        major_tick_out=4,
        major_tick_in=0,
        minor_tick_line_color=None,
        major_label_text_color=theme.muted,
        major_label_text_font=FONT,
        major_label_text_font_size="11px",
        axis_label_text_color=theme.muted,
        axis_label_text_font=FONT,
        axis_label_text_font_size="11px",
        axis_label_text_font_style="normal",
    )


def over_time(chart: Figure) -> None:
    """Make the horizontal axis an axis of times of day, see `local`."""
    chart.xaxis.formatter = DatetimeTickFormatter(
        seconds=_CLOCK, minsec=_CLOCK, minutes=_CLOCK, hourmin=_CLOCK, hours=_CLOCK, days=_CLOCK
    )
    chart.xaxis.ticker = SingleIntervalTicker(num_minor_ticks=0)
    chart.min_border_left = _LEFT_BORDER_PX
    chart.x_range = Range1d()


def local(times: Any) -> Any:
    """Return times, in seconds since the epoch, as milliseconds that Bokeh shows in the local time zone."""
    return (np.asarray(times) + time.localtime().tm_gmtoff) * 1000


def show_span(chart: Figure, begin: float, end: float) -> None:
    """Set the begin and end of an axis of `over_time`."""
    start, stop = local([begin, end])
    chart.x_range.update(start=start, end=stop)
    # whole minutes, or a part of one
    chart.xaxis[0].ticker.interval = (stop - start) / (4 if end - begin < 300 else 5)


def name_ticks(axis: Any, names: Sequence[str]) -> None:
    """Label an axis of indices by names, as many as fit."""
    axis.formatter = CustomJSTickFormatter(
        args={"names": list(names)}, code="return Number.isInteger(tick) ? names[tick] ?? '' : ''"
    )
    axis.ticker.min_interval = 1
    axis.ticker.num_minor_ticks = 0


def tick_format(unit: str) -> CustomJSTickFormatter:
    """Return the formatter of an axis for a unit, a key of `WORDS`."""
    return CustomJSTickFormatter(code=f"const number = tick\n{WORDS[unit]}")


def numbers(chart: Figure, unit: str) -> None:
    """Let the vertical axis begin at 0, with labels in a unit, a key of `WORDS`."""
    chart.yaxis.formatter = tick_format(unit)
    chart.yaxis.ticker = BasicTicker(base=2, mantissas=[1]) if unit == "bytes" else BasicTicker()
    chart.yaxis.ticker.desired_num_ticks = 5
    chart.y_range.start = 0
    chart.y_range.min_interval = 1e-6


def legend(chart: Figure, theme: Theme) -> None:
    """Place the legend in one line above the figure."""
    legend_model = chart.legend[0]
    chart.add_layout(legend_model, "above")
    legend_model.update(
        orientation="horizontal",
        location="bottom_left",
        background_fill_alpha=0,
        border_line_color=None,
        label_text_color=theme.muted,
        label_text_font=FONT,
        label_text_font_size="11px",
        glyph_width=12,
        glyph_height=12,
        spacing=14,
        padding=0,
        margin=5,
        click_policy="hide",
    )


def hover(chart: Figure, renderers: Sequence[Any], tooltips: Sequence[tuple[str, str]]) -> None:
    """Add a tooltip to renderers of the figure; a format may be a key of `WORDS`, as in ``"@{loss}{number}"``."""
    formats = [text.removesuffix("}").rpartition("{") for _, text in tooltips]
    formatters: dict[str, Any] = {column: _formatter(unit) for column, _, unit in formats if unit in WORDS}
    chart.add_tools(HoverTool(renderers=list(renderers), tooltips=list(tooltips), formatters=formatters))


def _formatter(unit: str) -> CustomJSHover:
    return CustomJSHover(code=f"const number = value\n{WORDS[unit]}")


class HeatMap:
    """A figure of one image, of rows by columns, with a color bar; up to 8 by 8 cells show their numbers.

    Parameters
    ----------
    theme
        Colors.
    height
        Height in pixels.
    rows
        Names of the rows, from top to bottom.
    columns
        Names of the columns, from left to right; None for an axis of time.
    unit
        Unit of the numbers, a key of `WORDS`.
    hover_titles
        Titles in the tooltip: of the row, the column, and the number.
    logarithmic
        Whether `draw` gets a scale of `ColorScale.logarithms`; the color bar then says so, and has a color for 0.
    """

    def __init__(
        self,
        theme: Theme,
        height: int,
        rows: Sequence[str],
        columns: Sequence[str] | None,
        *,
        unit: str,
        hover_titles: tuple[str, str, str],
        logarithmic: bool = False,
    ) -> None:
        options: dict[str, Any] = {}
        if columns is not None:
            options["x_range"] = Range1d(start=-0.5, end=len(columns) - 0.5)
        self.figure = chart = plot(theme, height, y_range=Range1d(start=len(rows) - 0.5, end=-0.5), **options)
        chart.grid.visible = columns is not None and max(len(rows), len(columns)) <= _CELLS_WITH_BORDERS
        if columns is None:
            over_time(chart)
        else:
            name_ticks(chart.xaxis[0], columns)
            chart.xgrid.ticker, chart.ygrid.ticker = _borders(columns), _borders(rows)
            chart.grid.level, chart.grid.grid_line_color = "overlay", theme.muted
        name_ticks(chart.yaxis[0], rows)
        self._image = ColumnDataSource({"image": [np.zeros((1, 1), np.uint8)], "x": [0.0], "dw": [1.0]})
        self._scale = ColumnDataSource({"high": [1.0]})
        mapper = LinearColorMapper(palette=theme.palette, low=0, high=255)
        image = chart.image(
            "image", "x", -0.5, "dw", len(rows),
            source=self._image, color_mapper=mapper,
        )  # fmt: skip
        # The smallest numbers have little contrast to the card, as have cells beside each other.
        chart.outline_line_color = theme.muted
        self._theme, self._logarithmic = theme, logarithmic
        self._has_apart = height >= _ROOM_FOR_BOTH_PX
        colors, below = theme.palette[FIRST:MISSING], 0
        if self._has_apart:
            apart = theme.nothing if logarithmic else theme.missing
            colors, below = [apart] * _APART_CODES + [theme.card] * _SPACE_CODES + colors, _APART_CODES + _SPACE_CODES
        self._ticks = FixedTicker(ticks=[])
        self._bar = ColorBar(
            color_mapper=LinearColorMapper(palette=colors, low=FIRST - below, high=TOP),
            title="log scale" if logarithmic else None,
            title_text_color=theme.muted,
            title_text_font=FONT,
            title_text_font_size="11px",
            title_text_font_style="normal",
            ticker=self._ticks,
            width=8,
            padding=8,
            label_standoff=6,
            background_fill_alpha=0,
            major_label_text_color=theme.muted,
            major_label_text_font=FONT,
            major_label_text_font_size="11px",
            major_tick_line_color=None,
            bar_line_color=theme.muted,
        )
        chart.add_layout(self._bar, "right")
        self._add_hover(image, rows, columns, unit, hover_titles)
        self._labels: dict[float, str] = {}
        self._written: ColumnDataSource | None = None
        if columns is not None and max(len(rows), len(columns)) <= _NUMBERS_SHOWN:
            self._written = ColumnDataSource({"x": [], "y": [], "text": [], "ink": []})
            # Cells that are high and narrow have two lines.
            self._between = "\n" if len(columns) > _NUMBERS_SHOWN // 2 and height > 48 * len(rows) else " "
            chart.text(
                "x", "y", "text", source=self._written, text_color="ink", text_font=value(FONT), text_font_size="11px",
                text_align="center", text_baseline="middle",
            )  # fmt: skip

    def draw(
        self,
        values: NDArray[np.floating],
        scale: ColorScale,
        describe: Callable[[float], str],
        times: NDArray[np.float64] | None = None,
        tick: float = 0.0,
    ) -> None:
        """Draw numbers.

        Parameters
        ----------
        values
            Shape (rows, columns); NaN without data.
        scale
            Maps numbers to colors.
        describe
            Formats a number for the color bar.
        times, tick
            For an axis of time: the end of each column, and its length in seconds.
        """
        x, dw = -0.5, float(values.shape[1])
        if times is not None and len(times):
            x, dw = float(local(times[0] - tick)), (float(times[-1] - times[0]) + tick) * 1000
        codes = scale.codes(values)
        # A code has too few bits for the number of a cell on a logarithmic scale.
        exact = {"number": [values.astype(np.float32)]} if self._logarithmic else {}
        self._image.data = {"image": [codes], "x": [x], "dw": [dw], **exact}
        if self._written is not None:
            inks = self._theme.inks
            row, column = np.indices(values.shape).reshape(2, -1)
            self._written.data = {
                "x": column,
                "y": row,
                "text": [self._cell(describe, number) for number in values.ravel()],
                "ink": [inks[code] for code in codes.ravel()],
            }
        labels = scale.labels(describe)
        if self._has_apart:
            labels[FIRST - _SPACE_CODES - _APART_CODES / 2] = describe(0.0) if self._logarithmic else "no data"
        if labels != self._labels:
            self._labels = labels
            self._scale.data = {"high": [scale.high]}
            # Sorted, because the browser omits a label that is too close to the previous one.
            self._ticks.ticks = sorted(labels)
            self._bar.update(major_label_overrides=labels)

    def _cell(self, describe: Callable[[float], str], number: np.floating) -> str:
        return describe(float(number)).replace(" ", self._between) if np.isfinite(number) else ""

    def _add_hover(
        self,
        image: Any,
        rows: Sequence[str],
        columns: Sequence[str] | None,
        unit: str,
        hover_titles: tuple[str, str, str],
    ) -> None:
        def name(names: Sequence[str]) -> CustomJSHover:
            return CustomJSHover(args={"names": list(names)}, code="return names[Math.round(value)] ?? ''")

        formatters: dict[str, Any] = {
            "$y": name(rows),
            "$x": "datetime" if columns is None else name(columns),
            "@image": CustomJSHover(args={"scale": self._scale}, code=_DECODE + WORDS[unit]),
            "@number": _formatter(unit),
        }
        across = "$x{%H:%M:%S}" if columns is None else "$x{custom}"
        cell = "@number{custom}" if self._logarithmic else "@image{custom}"
        tooltips = [(hover_titles[0], "$y{custom}"), (hover_titles[1], across), (hover_titles[2], cell)]
        self.figure.add_tools(HoverTool(renderers=[image], tooltips=tooltips, formatters=formatters))


def _borders(names: Sequence[str]) -> FixedTicker:
    return FixedTicker(ticks=[index + 0.5 for index in range(len(names) - 1)])


def share_bars(
    theme: Theme, source: ColumnDataSource, x: str, name: str, number_format: str, *, thin: bool = True, **options: Any
) -> Figure:
    """Return a figure of one stacked bar for each value of the column `x`.

    Parameters
    ----------
    source
        Has a column for each of `SHARES`.
    x, name
        Columns of the positions, and of the names of the bars.
    number_format
        Format of a number in the tooltip, like ``"{0 %}"``, see `hover`.
    thin
        Whether the bars touch each other.
    options
        Options of `plot`.
    """
    chart = plot(theme, 260, **options)
    bars = chart.vbar_stack(
        SHARES,
        x=x,
        width=1.0 if thin else 0.8,
        source=source,
        fill_color=list(theme.shares),
        # Lines separate the parts, and the idle part from the card; bars that touch have no space for lines.
        line_color=list(theme.shares) if thin else [*[theme.card] * (len(SHARES) - 1), theme.muted],
        legend_label=list(SHARE_TITLES),
    )
    legend(chart, theme)
    tooltips = ((title, f"@{share}{number_format}") for title, share in zip(SHARE_TITLES, SHARES, strict=True))
    hover(chart, bars, [(x, f"@{name}"), *tooltips])
    return chart
