"""Stacked bars of compute, MPI, waiting and idle time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.dashboard import charts
from workbench.dashboard.snapshot import SHARE_TITLES, SHARES
from workbench.dashboard.theme import Theme

if TYPE_CHECKING:
    from bokeh.models import ColumnDataSource


def share_bars(
    theme: Theme, source: ColumnDataSource, x: str, name: str, number_format: str, *, thin: bool = True, **options: Any
) -> charts.Figure:
    """Return a figure of one stacked bar for each value of the column `x`.

    Parameters
    ----------
    source
        Has a column for each of `SHARES`.
    x, name
        Columns of the positions, and of the names of the bars.
    number_format
        Format of a number in the tooltip, like ``"{0 %}"``.
    thin
        Whether the bars touch each other.
    options
        Options of `charts.plot`.
    """
    chart = charts.plot(theme, 260, **options)
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
    charts.legend(chart, theme)
    tooltips = ((title, f"@{share}{number_format}") for title, share in zip(SHARE_TITLES, SHARES, strict=True))
    charts.hover(chart, bars, [(x, f"@{name}"), *tooltips])
    return chart
