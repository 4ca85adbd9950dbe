"""How the plots of all benches look. matplotlib is loaded when one is drawn."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from math import log2
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.bench.report import Report
from workbench.bench.sizes import words
from workbench.errors import InvalidRequest

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def _line(color: str) -> dict[str, Any]:
    return {"color": color, "marker": "o", "markersize": 4}


# Of the palette by Okabe and Ito, which people with any color vision can distinguish.
BLUE, ORANGE, GREEN, GRAY = "#0072B2", "#D55E00", "#009E73", "#7F7F7F"
OURS, THEIRS, LIMIT = (_line(color) for color in (BLUE, ORANGE, GRAY))
"""How the lines of a measurement, of its reference and of the best that can be look."""
TLS: dict[str, Any] = {"linestyle": "--", "markerfacecolor": "white"}
"""What is added to it under TLS."""
_ENDINGS = (".png", ".svg", ".pdf")
# Sizes that are labeled on an axis, at most.
_LABELS = 8


def file(text: str) -> Path:
    """Return the file to draw to that an option gives.

    Raises
    ------
    argparse.ArgumentTypeError
        If its ending is none of a picture's, or there is no such folder: before anything is measured.
    """
    path = Path(text)
    if path.suffix not in _ENDINGS:
        raise argparse.ArgumentTypeError(f"{text!r} is not valid. Choose files that end in {', '.join(_ENDINGS)}")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r}: there is no folder {str(path.parent)!r}; make it first")
    return path


def require() -> None:
    """Raise `InvalidRequest` if nothing can be drawn here."""
    if find_spec("matplotlib") is None:
        raise InvalidRequest("--plot needs matplotlib: pip install 'mpi-workbench[bench]'")


def figure(report: Report, title: str, rows: int, columns: int, width: float = 5.5) -> tuple[Figure, list[Axes]]:
    """Return a figure with panels of so many inches under a title, and the facts of the machine."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        drawn = Figure(figsize=(width * columns, 1 + 3.7 * rows), dpi=150, layout="constrained")
        axes = list(drawn.subplots(rows, columns, squeeze=False).flat)
    drawn.suptitle(title, fontsize=13, fontweight="bold")
    drawn.supxlabel(textwrap.fill(report.facts(), int(14 * width) * columns), fontsize=7.5, color=GRAY)
    for panel in axes:
        panel.grid(color="0.92")
        panel.set_axisbelow(True)
    return drawn, axes


def size_axis(axes: Axes, nbytes: Sequence[int]) -> None:
    """Make the horizontal axis one of message sizes."""
    from matplotlib.ticker import NullLocator

    # From the largest down, which is the one that people look for.
    shown: list[int] = []
    for size in reversed(nbytes):
        if not shown or log2(shown[-1] / size) >= log2(nbytes[-1] / nbytes[0]) / _LABELS:
            shown.append(size)
    axes.set_xscale("log", base=2)
    axes.set_xticks(shown, [words(size) for size in shown], rotation=30, ha="right", rotation_mode="anchor")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("size of the message")


def time_axis(axes: Axes) -> None:
    """Make the vertical axis one of seconds: logarithmic, each label in the unit that fits."""
    from matplotlib.ticker import EngFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(EngFormatter(unit="s"))


def legend(drawn: Figure, axes: Axes) -> None:
    """Add one legend for all panels, which covers none of them: that of a panel with every line."""
    drawn.legend(*axes.get_legend_handles_labels(), loc="outside right upper", frameon=False)


def ratio_axis(axes: Axes) -> None:
    """Make the vertical axis one of ratios: logarithmic, so that half and twice are as far from one."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axes.set_yscale("log", base=10)
    axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def strips(axes: Axes, values: Mapping[str, Sequence[float]], arms: str, unit: str) -> None:
    """Draw every measurement of each arm as a dot, and a line at their median.

    Parameters
    ----------
    axes
        The panel.
    values
        Measurements by arm; the first arm is ours.
    arms
        What the arms are.
    unit
        What is measured, with its unit.
    """
    import numpy as np

    for place, (measured, color) in enumerate(zip(values.values(), (BLUE, ORANGE), strict=True)):
        # Spread in the order they were made, so that a drift shows.
        across = np.linspace(-0.2, 0.2, len(measured)) if len(measured) > 1 else [0.0]
        axes.plot(place + np.asarray(across), measured, "o", color=color, alpha=0.7, markersize=6)
        median = float(np.median(measured))
        axes.hlines(median, place - 0.3, place + 0.3, color=color, linewidth=2)
        axes.annotate(f"{median:.3g}", (place + 0.32, median), va="center", color=color)
    axes.set_xticks(range(len(values)), list(values))
    axes.grid(visible=False, axis="x")
    axes.set_xlim(-0.6, len(values) - 0.4)
    axes.set_ylim(0, 1.1 * max(map(max, values.values())))
    axes.set(xlabel=arms, ylabel=unit)
