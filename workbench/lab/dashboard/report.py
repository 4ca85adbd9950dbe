"""``python -m workbench.lab.dashboard.report NAME``: print all pages of a cluster as one HTML file.

The file contains its scripts, and opens without a server and without the cluster.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np
from bokeh.document import Document
from bokeh.embed import json_item
from bokeh.models import ImportedStyleSheet, InlineStyleSheet
from bokeh.resources import Resources
from panel.io.resources import CDN_DIST, DIST_DIR, parse_template, set_resource_mode

from workbench import __version__
from workbench.errors import HeadUnreachable, InvalidRequest, WorkbenchError
from workbench.lab.dashboard import cards
from workbench.lab.dashboard.cards import CardFactory
from workbench.lab.dashboard.head_source import HeadSource
from workbench.lab.dashboard.page import PageContext, Take
from workbench.lab.dashboard.session import PAGE_CLASSES
from workbench.lab.dashboard.snapshot import Snapshot
from workbench.lab.dashboard.source import Source
from workbench.lab.dashboard.theme import STYLE, THEMES, Theme, read_asset
from workbench.lab.dashboard.view_state import PAGES, ViewState
from workbench.text import count

EXIT_REFUSED = 3
"""Exit code of a failure; standard output then has the fields of the error."""
_FITS_SHOWN = 5
_TITLES = {page: title for page, title in PAGES.items() if page != "dask"}
# Panel's models need Bokeh's widgets and tables, used or not.
_COMPONENTS: list[Any] = ["bokeh", "bokeh-widgets", "bokeh-tables"]


async def report(source: Source, name: str) -> str:
    """Return all metrics of a cluster as HTML.

    Parameters
    ----------
    source
        The source of the metrics.
    name
        Name of the cluster.

    Raises
    ------
    InvalidRequest
        If the ranks have not sent a sample. `Source.ask` may raise other errors.

    Notes
    -----
    The file contains each page twice, once per theme, because the colors are part of the data. The history is that of a
    live page, at most 240 columns of a heat map. With five fits the data is 1.2 MB for 4 ranks and 1.4 MB for 512; the
    scripts are 2.7 MB.
    """
    snapshot = Snapshot.of(await source.ask(0))
    if not np.isfinite(snapshot.rank).any():
        raise InvalidRequest(
            f"Cluster {name!r} has no data for a report, because its ranks have not sent metrics. Try again in a "
            "second, or, if the setting workbench.metrics.enabled is false, set it to true and start the cluster again."
        )
    items = {}
    for theme in THEMES.values():
        drawn = {page: await _drawn(page, snapshot, theme, source) for page in _TITLES}
        # Escaped, so that no name of a host or a function ends the script element.
        items[theme.name] = json.dumps(drawn, allow_nan=False).replace("<", "\\u003c")
    ranks, nodes = count(len(snapshot.names), "rank"), count(len(snapshot.layout.nodes), "node")
    when = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(snapshot.time))
    html: str = parse_template(read_asset("report.html")).render(
        cluster=escape(name),
        subtitle=f"{ranks} on {nodes}, report of {when}, workbench {escape(__version__)}",
        titles=_TITLES,
        themes=THEMES.values(),
        style=STYLE,
        scripts=[*Resources("inline", components=_COMPONENTS).js_raw, _read_panel_asset("panel.min.js")],
        items=items,
    )
    return html


async def _drawn(name: str, snapshot: Snapshot, theme: Theme, source: Source) -> Any:
    """Return a page as Bokeh embeds it."""
    pairs: list[tuple[int, int, Take]] = []

    def ask_pair(pair_source: int, target: int, take: Take) -> None:
        pairs.append((pair_source, target, take))

    fits = list(dict.fromkeys(record["fit"] for record in snapshot.fits))[-_FITS_SHOWN:] if name == "training" else []
    views = []
    for fit in fits or [""]:
        view_state = ViewState(minutes=_minutes(snapshot), span="total", fit=fit)
        page = PAGE_CLASSES[name](snapshot, PageContext(view_state, CardFactory(theme, live=False), ask_pair))
        page.show(snapshot)
        views.append(page.view)
    for pair_source, target, take in pairs:
        take(*await source.pair(pair_source, target))
    with set_resource_mode("inline"):
        root = cards.column(*views).get_root(Document())
    _inline_styles(root)
    return json_item(root)


def _minutes(snapshot: Snapshot) -> int:
    """Return the shortest choice of minutes that covers the history."""
    choices: list[int] = ViewState.param.minutes.objects
    passed = (snapshot.time - float(snapshot.times[0])) / 60
    return next((choice for choice in choices if choice >= passed), choices[-1])


def _inline_styles(root: Any) -> None:
    """Replace the style sheets of Panel's server by their text."""
    inlined: dict[str, InlineStyleSheet] = {}

    def inline(sheet: Any) -> Any:
        if not isinstance(sheet, ImportedStyleSheet):
            return sheet
        file = _file(sheet)
        return inlined.setdefault(file, InlineStyleSheet(css=_read_panel_asset(file)))

    for model in root.references():
        if sheets := getattr(model, "stylesheets", None):
            # A report has no loading indicator, and its images are missing here.
            model.stylesheets = [inline(sheet) for sheet in sheets if _file(sheet) != "css/loading.css"]


def _file(sheet: Any) -> str:
    return str(sheet.url).removeprefix(CDN_DIST).partition("?")[0] if isinstance(sheet, ImportedStyleSheet) else ""


def _read_panel_asset(file: str) -> str:
    return (DIST_DIR / file).read_text(encoding="utf-8")


def main(arguments: Sequence[str]) -> int:
    """Write the report of a cluster; return the exit code."""
    (name,) = arguments
    try:
        # The file declares UTF-8, whatever the locale.
        sys.stdout.buffer.write(asyncio.run(_of_cluster(name)).encode())
    except WorkbenchError as error:
        return _refuse(error)
    except OSError as error:
        message = f"The head of cluster {name!r} does not answer ({error or 'timeout'})."
        return _refuse(HeadUnreachable(message, hint="Try again."))
    return 0


def _refuse(error: WorkbenchError) -> int:
    json.dump(error.fields(), sys.stdout)
    return EXIT_REFUSED


async def _of_cluster(name: str) -> str:
    async with HeadSource(name) as source:
        return await report(source, name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
